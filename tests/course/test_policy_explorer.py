"""PolicyExplorer without a browser: its state, its still picture, the weights that it sends, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from policy_reference import ITEMS, Reference, checkpoints
from safetensors.torch import load, load_file, save

import data.__main__
from course.explorers import PolicyExplorer
from course.policy_files import POSITIONS, half_precision, kept_steps
from data.policy_steps import quantised


@pytest.fixture(scope="module")
def references():
    return {game: Reference(game) for game in ITEMS}


@pytest.mark.parametrize("game", ITEMS)
def test_the_still_has_the_probabilities_of_the_policy(references, tmp_path, game):
    reference = references[game]
    first, last = reference.steps[1], reference.steps[-1]
    view = PolicyExplorer(game, reference.base, checkpoints(reference, tmp_path, [first, last]))
    shares = view.probabilities
    assert list(shares) == [0, first, last]
    cells = POSITIONS[game][0][2]
    if game == "2048":
        text, answers = "\n".join(" ".join(str(tile or ".") for tile in cells[i : i + 4]) for i in (0, 4, 8, 12)), ["left", "right", "up", "down"]
    else:
        text, answers = "o to move\n" + "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6)), list("123456789")
    ids = reference.tokenizer.convert_tokens_to_ids(answers)
    wanted = reference.logits(last, [text])[0].softmax(-1)[ids]
    assert shares[last] == pytest.approx(wanted.tolist(), abs=2e-3)  # the reference's base model is rounded to float16
    assert view.static_png().startswith(b"\x89PNG") and POSITIONS[game][0][0] in view.summary()
    assert ("square 3:" in view.summary()) == (game == "tic_tac_toe")
    table = view.static_html()
    assert table.count("<tr>") == 1 + len(answers) and f"{shares[last][0]:.1%}" in table and "illegal" in table


def test_weights_are_sent_on_request_and_not_before(references, tmp_path):
    reference = references["2048"]
    last = reference.steps[-1]
    view = PolicyExplorer("2048", reference.base, checkpoints(reference, tmp_path, [last]), winning_tile=256)
    assert len(json.dumps({name: value for name, value in view.get_state().items() if name not in ("_esm", "_css", "layout")}, default=str)) < 40_000
    assert view.weights == b"" and view.sent is None
    view.wanted = last
    assert view.sent == last and view.scale == reference.facts["scale"]
    sent = load(view.weights)
    assert set(sent) == set(reference.adapters[last]) and all(torch.equal(sent[name], tensor.half()) for name, tensor in reference.adapters[last].items())
    view.wanted = 0
    base = load_file(reference.base / "model.safetensors")
    assert view.sent == 0 and all(torch.equal(tensor, base[name].half()) for name, tensor in load(view.weights).items())


def test_halves_are_torch_s():
    torch.manual_seed(0)
    tensors = {"b": torch.randn(7, 3) * 10, "a": torch.tensor([[0.0, -0.0, 1e-7, 6e-5, 65_000.0]]), "c": torch.randn(2).half()}
    eight = torch.tensor([[-127, 3]], dtype=torch.int8)
    assert torch.equal(load(half_precision(save({"x": eight})))["x"], eight)
    found = load(half_precision(save(tensors)))
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys("abc", torch.float16)
    assert all(torch.equal(found[name], tensor.half()) and found[name].shape == tensor.shape for name, tensor in tensors.items())
    with pytest.raises(ValueError, match="tensor x is I64; expected F32, F16 or I8"):
        half_precision(save({"x": torch.arange(3)}))


@pytest.mark.parametrize(("last", "steps"), [(0, [0]), (1, [0, 1]), (8, [0, 1, 2, 4, 8]), (12, [0, 1, 2, 4, 8, 12]), (11, [0, 1, 2, 4, 11])])
def test_kept_steps(last, steps):
    assert kept_steps(last) == steps


def test_another_game_another_model_and_no_checkpoint_are_refused(references, tmp_path):
    reference = references["2048"]
    adapters = checkpoints(reference, tmp_path, [reference.steps[-1]])
    with pytest.raises(ValueError, match="expected one of 2048, tic_tac_toe"):
        PolicyExplorer("chess", reference.base, adapters)
    with pytest.raises(ValueError, match="train for at least one step"):
        PolicyExplorer("2048", reference.base, {})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="is a llama model; expected a Qwen3 model"):
        PolicyExplorer("2048", tmp_path, adapters)


@pytest.mark.parametrize("game", ITEMS)
def test_the_offered_positions_have_the_legal_answers_that_their_texts_name(game):
    import game_2048
    import tic_tac_toe

    found = [game_2048.legal_moves(tuple(tuple(cells[i : i + 4]) for i in (0, 4, 8, 12))) if game == "2048" else tic_tac_toe.legal_moves("".join(cells)) for _, _, cells in POSITIONS[game]]
    if game == "2048":
        assert found == [["left", "right", "up"], ["right", "up"], ["left", "right"], ["left", "right", "up"]]
    else:
        block, win, fork, corners, empty = (("".join(cells)) for _, _, cells in POSITIONS[game])
        assert tic_tac_toe.to_move(block) == "o" and tic_tac_toe.to_move(win) == tic_tac_toe.to_move(fork) == "x" and empty == tic_tac_toe.EMPTY

        def saved(board):  # the squares after which ✕ can't win by force
            after = {square: board[: int(square) - 1] + "o" + board[int(square) :] for square in tic_tac_toe.legal_moves(board)}
            return [square for square, each in after.items() if tic_tac_toe.value(each) < 1]

        assert saved(block) == ["3"] and saved(corners) == ["2", "4", "6", "8"] and tic_tac_toe.to_move(corners) == "o"
        assert {square for square in tic_tac_toe.legal_moves(fork) if tic_tac_toe.value(fork[: int(square) - 1] + "x" + fork[int(square) :]) == 1} >= {"5", "9"}


def test_the_data_are_registered():
    assert {item.name for item in ITEMS.values()} <= set(data.__main__.ITEMS)


def test_quantised_adapters_are_near():
    """Of a random adapter: at most half a step of the row's scale, as float16 rounds it."""
    torch.manual_seed(0)
    adapter = {"a": torch.randn(4, 50) * torch.tensor([[1e-3], [1.0], [50.0], [0.0]])}
    found = quantised(adapter)
    rounded = found["a"].float() * found["a_scale"].float()
    assert found["a"].dtype == torch.int8 and found["a_scale"].dtype == torch.float16
    assert ((rounded - adapter["a"]).abs() <= 0.51 * found["a_scale"].float() + 1e-6 * adapter["a"].abs()).all()
