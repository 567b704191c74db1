"""The feedback upsert: from commands, through the table's own past, to a version.

`commands` are what rows ask for, `stash` keeps the one of each key that can still win, `stage`
looks the keys up in the table and writes one run, `outcomes` says what each command did, and
`commit` proposes what all tasks staged (`write_set`) behind the newest version.
"""
