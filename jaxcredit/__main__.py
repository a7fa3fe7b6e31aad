"""`python -m jaxcredit`: the command line, where its script is not on the path."""

from jaxcredit.cli import main

if __name__ == "__main__":
    main()
