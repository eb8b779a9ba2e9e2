"""What holds for the answers to every exercise, whichever module it is in."""


def hold(check, exercise, right, mistakes):
    """No answer is not attempted; the right ones are right; each mistake, an (answer, hint) pair, is wrong, and its hint is given."""
    assert check(exercise, lambda *inputs: None).status == "not attempted"
    for answer in right:
        assert check(exercise, answer).status == "right", check(exercise, answer)
    for answer, hint in mistakes:
        verdict = check(exercise, answer)
        assert verdict.status == "wrong" and hint in verdict.text, verdict


def hold_mistakes(exercises):
    """Each mistake that an exercise has a hint for is taken for that one. exercises: by name."""
    for exercise in exercises.values():
        for hint, mistake in exercise.mistakes.items():
            assert hint in exercise.check(mistake).text
