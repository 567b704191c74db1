"""The write path: from rows through commands to a committed version.

`commands` decodes rows, `stash` retains each key's possible winner, `stage` looks keys up and
writes one run, `outcomes` classifies each command, and `commit` proposes all tasks' files
(`write_set`) after the newest version.
"""
