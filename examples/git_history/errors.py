"""What the demo says when it cannot begin."""


class DemoError(Exception):
    """Something is missing that only the user can give; the text is a sentence and a hint."""

    def __init__(self, text: str, *, hint: str) -> None:
        super().__init__(f"{text}\n\nHint: {hint}")
