"""README.md holds what it promises: its code runs, its commands exist, its links lead somewhere."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import envs
import jaxcredit as jc
from jaxcredit import cli
from own_process import ROOT, environment

README = (ROOT / "README.md").read_text()

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^ {4}|`)((?:jaxcredit|make|python -m) [^`\n#]+)", re.MULTILINE)
COMMANDS = sorted({found.strip() for found in COMMAND.findall(README)})

CHECKS = """
assert frame.shape[0] == 2 * 3 * 2 * 16
assert metrics["episode_return"].shape == (5,)
assert len(result.summary) == 4
"""


def test_code_runs(tmp_path: Path) -> None:
    """All blocks in order, in one session, as a reader would paste them; line numbers are those of the README."""
    script, end = "", 0
    for block in PYTHON_BLOCK.finditer(README):
        script += "\n" * README.count("\n", end, block.start(1)) + block[1]
        end = block.end(1)
    (tmp_path / "README.md.py").write_text(script + CHECKS)
    command = [sys.executable, "README.md.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    table = README[README.index("| File of a run") :].partition("\n\n")[0]
    listed = {name.partition(".out.")[0].rstrip("/") for name in re.findall(r"`([\w.*]*[./][\w*]*)`", table)}
    assert {path.name.partition(".out.")[0] for path in (tmp_path / "runs/first").iterdir()} == listed


def test_uses_are_short() -> None:
    """The three uses and a method of one's own: under 15 lines each."""
    lengths = [len([line for line in block.splitlines() if line.strip()]) for block in PYTHON_BLOCK.findall(README)]
    assert len(lengths) >= 5 and max(lengths) < 15, lengths


@pytest.mark.parametrize("command", COMMANDS)
def test_command_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words) <= set(targets)
    elif program == "python":
        module = ROOT / words[1].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists()
    else:
        with pytest.raises(SystemExit) as stop:
            cli.main([words[0], "--help"])
        assert stop.value.code == 0
        known = re.findall(r"--[\w-]+", capsys.readouterr().out)
        assert {word for word in words if word.startswith("--")} <= set(known)
        check_choices(words)


def check_choices(words: list[str]) -> None:
    """Environments and credits that a command names are there; a credit of one's own stands for any."""
    for word, following in pairwise(words):
        if word == "--env":
            assert following in envs.names()
    if "--credits" in words:
        credits = re.match(r"[^-]*", " ".join(words[words.index("--credits") + 1 :]))[0].split()
        assert credits and all(":" in credit or cli.split_credit(credit)[0] in cli.ESTIMATORS for credit in credits)


def test_environments_exist() -> None:
    rows = README[README.index("| Name | Task |") :].partition("\n\n")[0]
    for name in re.findall(r"`([^`]+)`", rows):
        wrapper = re.match(r"envs\.(\w+)\(env\)", name)
        assert hasattr(envs, wrapper[1]) if wrapper else name in envs.names(), name


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_version_is_cited() -> None:
    assert f"version = {{{jc.__version__}}}" in README
