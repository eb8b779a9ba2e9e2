"""Assertions for the answers to any exercise."""


def hold(check, exercise, right, mistakes):
    """Assert that the right answers are right and that each mistake, an (answer, hint) pair, is wrong and gets its hint."""
    assert check(exercise, lambda *inputs: None).status == "not attempted"
    for answer in right:
        assert check(exercise, answer).status == "right", check(exercise, answer)
    for answer, hint in mistakes:
        verdict = check(exercise, answer)
        assert verdict.status == "wrong" and hint in verdict.text, verdict


def hold_mistakes(exercises):
    """Assert that each known mistake gets its own hint. exercises: by name."""
    for exercise in exercises.values():
        for hint, mistake in exercise.mistakes.items():
            assert hint in exercise.check(mistake).text
