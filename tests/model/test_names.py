"""Names of models and projects become folders: names that leave the folder or are invalid on some system raise."""

import pytest

import art_nb as art

ALLOWED = [
    "2048-agent-001", "email agent", "email-agent-14b", "tic_tac_toe", "Qwen2.5-0.5B", "_", "Übung", "模型 1", "a.b", "lr=1e-5", "com", "console",
]  # fmt: skip
REFUSED = [
    "", ".", "..", "../../etc", "/etc", "a/b", "a\\b", "C:a", "a\0", "a\n", "a\tb", "\x1b[2J", " a", "a ", "a.", ".a", "-rf", "~", "a*", "a?",
    'a"', "a|b", "<a>", "a@1", "NUL", "con", "Aux.txt", "COM1", "lpt9.log", "com¹", "nul .a", "\ud800", "\u202ea", "a\u200b", "a" * 201, "ü" * 101,
]  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("kind", [art.Model, art.TrainableModel])
def test_names_of_arts_examples_are_valid(name, kind, tmp_path):
    base = {"base_model": "b"} if kind is art.TrainableModel else {}
    model = kind(name=name, project=name, base_path=str(tmp_path), **base)
    model.overwrite_state({})
    (written,) = tmp_path.rglob("state.json")
    assert written.relative_to(tmp_path).parts[:-1] == (name, "models", name)


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_names_raise_with_the_allowed_characters(name):
    for fields in ({"name": name, "project": "p"}, {"name": "n", "project": name}):
        for make in (art.Model, lambda **given: art.TrainableModel(base_model="b", **given)):
            with pytest.raises(ValueError, match=r"(name|project) is .*: it names a folder, so use letters, digits"):
                make(**fields)


def test_a_trainable_model_has_another_name_than_its_base_model():
    """In requests, the name selects the trained policy."""
    with pytest.raises(ValueError, match="name and base_model are both 'nano'.*: choose another one"):
        art.TrainableModel(name="nano", project="p", base_model="nano")


def test_a_servers_own_name_goes_to_inference_model_name():
    model = art.Model(name="gpt", project="p", inference_model_name="openai/gpt")
    assert model.get_inference_name() == "openai/gpt"
