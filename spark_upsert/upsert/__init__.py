"""The feedback upsert: from commands, through the table's own past, to differential updates."""
