"""The write path: from rows through commands to a committed version.

`commands` decodes rows, `stash` retains each key's possible winner, `stage` looks keys up and
writes one run, `outcomes` classifies commands, and `commit` proposes a `write_set`.
"""
