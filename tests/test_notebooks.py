"""Every notebook runs from top to bottom, and is committed with the output of such a run."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from own_process import ROOT, environment

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = {"quickstart": 2, "sweep": 2}
ABSOLUTE_PATH = re.compile(r"(?:^|[\s'\"(=])(?:/\w[\w.-]*){2,}|\b[A-Z]:\\|site-packages|ipykernel_")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_notebooks_are_known() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PICTURES)


def test_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment())
    check_outputs(notebook, PICTURES[path.stem])


def test_is_committed_with_its_output(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    check_outputs(notebook, PICTURES[path.stem])
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run it from top to bottom in a fresh kernel, then save"


def check_outputs(notebook: nbformat.NotebookNode, pictures: int) -> None:
    """So many pictures, no errors, no warnings, and nothing that tells where it ran."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    for output in outputs:
        for text in (output.get("text", ""), output.get("data", {}).get("text/plain", "")):
            assert not ABSOLUTE_PATH.search(text), text
