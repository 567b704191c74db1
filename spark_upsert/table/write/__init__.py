"""Feedback upsert: from commands, through the table's history, to a version.

`commands` decodes rows into commands, `stash` retains each key's possibly winning command, `stage`
looks the keys up in the table and writes one run, `outcomes` classifies each command's effect, and
`commit` proposes all tasks' staged files (`write_set`) after the newest version.
"""
