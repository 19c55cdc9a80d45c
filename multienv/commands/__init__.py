"""COMMANDS: WHAT each command of the command line does, one file a command.

Flow: `cli` → `run_...` → the rooms below → a console, a file, an exit code.
"""
