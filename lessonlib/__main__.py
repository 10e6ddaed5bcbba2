"""`python -m lessonlib`: everything the notebooks do, from the command line."""

from lessonlib.cli import main

main()
