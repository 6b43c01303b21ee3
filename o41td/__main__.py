"""`python -m o41td` is the same as the command `o41td`."""

from o41td.cli import main

if __name__ == "__main__":
    main()
