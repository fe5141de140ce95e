"""Forms of a whole model in tests of both lines; the fixture `said` says how fast they are."""


def notes_of(result):
    return dict(note.split(": ", 1) if "threads" not in note else note.rsplit(": ", 1) for note in result.notes)
