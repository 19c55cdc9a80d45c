"""Lets the command line be run as a module: `python -m multienv`, `accelerate launch -m multienv train FILE`."""

from multienv.cli import main

main()
