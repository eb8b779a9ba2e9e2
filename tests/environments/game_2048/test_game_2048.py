"""2048: rules against an independent implementation, seeded tiles, rewards and the environment."""

import itertools
import json
import math
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_nb.trajectories import Trajectory
from benchmarks.rise import TrainingRecipe
from game_2048 import environment as g
from game_2048.criteria import replay
from game_2048.players import greedy_player, play, random_player
from game_2048.rules import slide_row, spawn, start_board

# Quarter turns that bring the side moved to onto the left.
TURNS = {"left": 0, "up": 1, "right": 2, "down": 3}


def brute_slide(board, move):
    """Move the tiles of the rotated board one cell at a time; a merged tile is marked and does not merge again."""
    cells = np.rot90(np.array(board), TURNS[move]).copy()
    merged, gained = np.zeros(cells.shape, bool), 0
    for column in range(1, len(cells)):
        for row in range(len(cells)):
            at = column
            while at > 0 and cells[row, at] and cells[row, at - 1] == 0:
                cells[row, at - 1], cells[row, at] = cells[row, at], 0
                at -= 1
            if at > 0 and cells[row, at] and cells[row, at] == cells[row, at - 1] and not merged[row, at - 1]:
                cells[row, at - 1] *= 2
                cells[row, at] = 0
                merged[row, at - 1] = True
                gained += int(cells[row, at - 1])
    return tuple(map(tuple, np.rot90(cells, -TURNS[move]).tolist())), gained


@st.composite
def boards(draw, sizes=range(2, 7), levels=range(12)):
    size = draw(st.sampled_from(sizes))
    cell = st.sampled_from([0, 0, *(2**level for level in levels if level)])
    return tuple(tuple(draw(cell) for _ in range(size)) for _ in range(size))


def test_every_row_of_four_small_tiles():
    for row in itertools.product((0, 2, 4, 8), repeat=4):
        board, gained = brute_slide((row, *[(0,) * 4] * 3), "left")
        assert slide_row(row) == (board[0], gained), row


@settings(max_examples=400, deadline=None)
@given(boards())
def test_moves_equal_the_brute_force(board):
    legal = []
    for move in g.MOVES:
        expected = brute_slide(board, move)
        assert g.slide(board, move) == expected
        legal += [move] if expected[0] != board else []
    assert g.legal_moves(board) == legal


@settings(deadline=None)
@given(boards(levels=range(30)))
def test_a_rendered_board_reads_back(board):
    assert g.parse(g.render(board)) == board
    assert g.board_of("Your turn.\n" + g.render(board)) == [list(row) for row in board]


def test_the_prompt_format():
    assert g.render(((2, 0, 0, 4), (0, 0, 2, 0), (0,) * 4, (0,) * 4)) == "2 . . 4\n. . 2 .\n. . . .\n. . . ."


NO_BOARDS = ("", "left", "2 .\n. 3", "2 . .\n. .", "2 0\n. .", "02 .\n. .", "٢ .\n. .", "2", "-2 .\n. .")


@pytest.mark.parametrize("text", NO_BOARDS)
def test_text_that_is_not_a_board_raises(text):
    assert g.parse(text) is None
    assert g.board_of(text) is None


def test_a_new_tile_is_a_four_one_time_in_ten_and_every_empty_cell_is_equally_likely():
    rng, board = random.Random(0), ((2, 0, 0), (0, 4, 0), (2, 2, 0))
    found = {}
    for _ in range(20_000):
        after = spawn(board, rng)
        [(cell, tile)] = [
            ((i, j), after[i][j]) for i in range(3) for j in range(3) if after[i][j] != board[i][j]
        ]
        assert board[cell[0]][cell[1]] == 0
        found[cell, tile] = found.get((cell, tile), 0) + 1
    fours = sum(n for (_, tile), n in found.items() if tile == 4)
    assert {tile for _, tile in found} == {2, 4}
    assert abs(fours / 20_000 - 0.1) < 4 * math.sqrt(0.1 * 0.9 / 20_000)
    cells = [sum(n for (cell, _), n in found.items() if cell == wanted) for wanted in {c for c, _ in found}]
    assert len(cells) == 5
    assert all(abs(n / 20_000 - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 20_000) for n in cells)


def new_tiles(seed, choose):
    """Return (value, rank of its cell among the empty cells, number of empty cells) of each new tile after the start."""
    game, came = g.Game(seed), []
    while not game.over:
        move = choose(game)
        moved, _ = g.slide(game.board, move)
        game.move(move)
        empty = [(i, j) for i in range(4) for j in range(4) if moved[i][j] == 0]
        [cell] = [(i, j) for i, j in empty if game.board[i][j]]
        came.append((game.board[cell[0]][cell[1]], empty.index(cell), len(empty)))
    return came


def test_players_with_the_same_seed_get_the_same_tiles():
    rng = random.Random(1)
    one = new_tiles(7, lambda game: game.legal_moves()[0])
    two = new_tiles(7, lambda game: rng.choice(game.legal_moves()))
    assert g.Game(7).board == g.Game(7).board != g.Game(8).board
    assert [tile for tile, *_ in one[:40]] == [tile for tile, *_ in two[:40]]
    expected = random.Random(7)
    draws = [(expected.random(), expected.random()) for _ in range(2 + max(len(one), len(two)))][2:]
    for came in (one, two):
        for (tile, rank, empty), (place, value) in zip(came, draws, strict=False):
            assert (tile, rank) == (4 if value < 0.1 else 2, int(place * empty))


def test_a_game_is_the_same_in_every_process():
    assert g.render(g.Game(0).board) == ". . . .\n. . 2 .\n. . . .\n. 2 . ."


def at(board, seed=0, winning_tile=2048, **options):
    game = g.Game(seed, len(board), winning_tile, **options)
    game.board = board
    return game


def test_an_illegal_move_ends_the_game():
    game = at(((2, 4), (4, 8)))
    assert game.move("left") == -1.0
    assert (game.over, game.won, game.ended_by, game.moves) == (True, False, "illegal", 0)
    assert game.board == ((2, 4), (4, 8))
    with pytest.raises(ValueError, match="over"):
        game.move("up")


@pytest.mark.parametrize("answer", ["", None, "lef", "left right", "<left>", "LEFTı", "5"])
def test_a_malformed_answer_ends_the_game(answer):
    game = g.Game(0)
    assert game.move(answer) == -1.0
    assert (game.ended_by, game.turn_rewards) == ("malformed", [-1.0])
    assert g.outcome_reward(game) == -1.0


def test_case_and_outer_whitespace_do_not_matter():
    game = at(((0, 2), (0, 0)))
    game.move(" \nLeft\t")
    assert game.ended_by is None
    assert game.moves == 1
    assert game.board[0][0] == 2


def test_winning_ends_the_game():
    game = at(((4, 4), (0, 0)), winning_tile=8, weights=g.TurnWeights(0.4, 0.3, 0.15, 0.1))
    reward = game.move("left")
    assert (game.over, game.won, game.ended_by, game.score, game.max_tile) == (True, True, "won", 8, 8)
    assert g.outcome_reward(game) == 2.0
    # merges: log2(8) / log2(8); empty: 3 of 4 cells; one tile alone is neither rough nor zigzag; a win adds 2
    assert reward == pytest.approx(0.4 * 1 + 0.3 * 0.75 + 0.15 + 0.1 + 2)


def test_a_board_without_a_move_ends_the_game():
    for seed in range(20):
        game = at(((0, 16), (32, 64)), seed, weights=g.TurnWeights(0.4, 0.3, 0.15, 0.1))
        game.move("left")
        # The 2 or 4 in the last cell equals neither neighbour.
        assert game.ended_by == "stuck"
        # Levels 4 over 5 and 6: two neighbouring pairs, each one doubling apart where ten would be the most.
        assert game.turn_rewards[-1] == pytest.approx(0.3 / 4 + 0.15 + 0.1 * (1 - 2 / (2 * 10)) - 2)


def test_a_turn_reward_by_hand():
    moved = ((2, 8, 4, 0), (0,) * 4, (0,) * 4, (0,) * 4)
    # One line has neighbours: steps of +2 and -1 doublings; with a winning tile of 128, 6 would be the most.
    expected = 0.5 * 4 / 7 + 0.25 * 13 / 16 + 0.125 * (1 - 1 / 48) + 2 * (1 - 3 / 12)
    weights = g.TurnWeights(merges=0.5, empty=0.25, monotonicity=0.125, smoothness=2)
    assert g.turn_reward(moved, 16, 128, weights) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("place", "expected"), [((3, 0), 1), ((2, 0), 5 / 6), ((3, 1), 5 / 6), ((0, 0), 1 / 2), ((3, 3), 1 / 2), ((0, 3), 0)]
)
def test_closeness_falls_with_the_steps_to_the_lower_left_corner(place, expected):
    board = [[0] * 4 for _ in range(4)]
    board[place[0]][place[1]] = 64
    by_closeness = g.TurnWeights(0, 0, 0, 0, closeness=0.3)
    assert g.turn_reward(tuple(map(tuple, board)), 0, 128, by_closeness) == pytest.approx(0.3 * expected)
    board[3][0] += 64  # another tile of 64 in the corner, or one of 128
    assert g.turn_reward(tuple(map(tuple, board)), 0, 128, by_closeness) == pytest.approx(0.3 * (expected + 1) / 2)


@settings(deadline=None)
@given(boards(), st.sampled_from(g.MOVES))
def test_turn_features_are_between_zero_and_one(board, move):
    moved, _ = g.slide(board, move)
    for feature in ("empty", "monotonicity", "smoothness", "closeness"):
        only = g.TurnWeights(**{"merges": 0, "empty": 0, "monotonicity": 0, "smoothness": 0, feature: 1})
        assert -1e-9 <= g.turn_reward(moved, 0, 4096, only) <= 1 + 1e-9


@settings(deadline=None)
@given(boards())
def test_the_reward_of_a_random_move_is_the_mean_of_what_the_legal_moves_earn_in_a_game(board):
    weights = g.TurnWeights(closeness=0.3, illegal=math.nan, win=0, loss=0)
    games = [at(board, winning_tile=4096, weights=weights) for _ in g.MOVES]
    earned = [game.move(move) for game, move in zip(games, g.MOVES, strict=True)]
    legal = [reward for reward in earned if not math.isnan(reward)]
    expected = sum(legal) / len(legal) if legal else 0
    assert g.random_move_reward(board, 4096, weights) == pytest.approx(expected)


RECIPE = TrainingRecipe()


@pytest.mark.parametrize(
    ("weights", "discount", "player", "winning_tile"),
    [
        (g.TurnWeights(), 0.95, random_player(0), 128),
        (RECIPE.weights(), RECIPE.turn_discount, greedy_player(RECIPE.weights(), 256), 256),
    ],
)
def test_winning_is_worth_more_than_an_endless_game(weights, discount, player, winning_tile):
    """Also for the rewards of notebook 02, and the player that takes the highest of them."""
    games = [play(player, seed, winning_tile=winning_tile, weights=weights) for seed in range(30)]
    turns = [reward for game in games for reward in game.turn_rewards[:-1]]
    assert 0 < sum(turns) / len(turns) / (1 - discount) < weights.win


def test_one_turn_reward_per_answer():
    game, rng = g.Game(3), random.Random(0)
    answers = 0
    while not game.over:
        game.move(rng.choice(g.MOVES))
        answers += 1
    assert len(game.turn_rewards) == answers == game.moves + (game.ended_by == "illegal")


def test_an_outcome_reward_by_hand():
    game = at(((32, 16, 8, 4), (2, 2, 0, 0), (0,) * 4, (0,) * 4), winning_tile=128)
    assert g.outcome_reward(game) == pytest.approx((5 - 1) / (7 - 1) + 0.2 * (6 - 1) / (11 - 1))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"seed": -1}, ValueError), ({"seed": "1"}, TypeError), ({"seed": True}, TypeError),
        ({"seed": 1.0}, TypeError), ({"size": 1}, ValueError), ({"size": 4.0}, TypeError),
        ({"winning_tile": 4}, ValueError), ({"winning_tile": 100}, ValueError),
        ({"winning_tile": None}, TypeError),
    ],
)  # fmt: skip
def test_invalid_options_raise(options, error):
    with pytest.raises(error, match=next(iter(options))):
        g.Game(**{"seed": 0} | options)


def test_splits_share_no_seed():
    seeds = [set(g.scenarios(split, 1_000_000)) for split in ("train", "val", "test")]
    assert sum(map(len, seeds)) == len(set.union(*seeds)) == 3_000_000
    assert g.scenarios("val", 2) == [1_000_000, 1_000_001]
    with pytest.raises(ValueError, match="train, val, test"):
        g.scenarios("validation", 2)
    with pytest.raises(ValueError, match="1,000,001"):
        g.scenarios("train", 1_000_001)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_random_boards_are_playable_and_have_tiles_of_every_size(size):
    rng = random.Random(0)
    found = [g.random_board(rng, max_tile=2048, size=size) for _ in range(2000)]
    assert {tile for board in found for row in board for tile in row} == {0, *(2**level for level in range(1, 12))}
    for board in found[:200]:
        targets = g.soft_targets(board)
        assert [move for move in g.MOVES if targets[move]] == g.legal_moves(board) != []
        assert sum(targets.values()) == pytest.approx(1)


def test_random_boards_have_no_tile_above_the_limit():
    rng = random.Random(0)
    for board in [g.random_board(rng, 64) for _ in range(500)]:
        assert g.legal_moves(board)
        assert max(map(max, board)) <= 64
    for wrong in (0, 2, 100):
        with pytest.raises(ValueError, match=f"max_tile must be a power of two, at least 4, not {wrong}"):
            g.random_board(rng, wrong)


def test_soft_targets_of_a_stuck_board_are_all_zero():
    assert g.soft_targets(((2, 4), (8, 16))) == dict.fromkeys(g.MOVES, 0.0)


def test_after_move_raises_for_an_illegal_move():
    with pytest.raises(ValueError, match="'left'"):
        g.after_move(((2, 4), (4, 8)), "left", random.Random(0))


def test_a_start_has_two_tiles():
    for seed in range(50):
        board = start_board(random.Random(seed), 5)
        assert sum(row.count(0) for row in board) == 23


def test_the_tool_schema_is_the_one_transformers_derives():
    get_json_schema = pytest.importorskip("transformers.utils").get_json_schema
    assert json.dumps(get_json_schema(g.Game2048Environment().move)) == json.dumps(g.MOVE_TOOL)


def test_an_episode_of_the_environment():
    environment = g.Game2048Environment(winning_tile=16)
    first = environment.reset(seed=5, prompt=[{"role": "user", "content": ""}], answer="ignored")
    assert first == g.render(g.Game(5).board)
    twin, rng = g.Game(5, winning_tile=16), random.Random(0)
    while not twin.over:
        move = rng.choice(twin.legal_moves())
        twin.move(move)
        assert environment.move(move) == (g.GAME_OVER if twin.over else twin.render())
    reward = environment.get_reward()
    assert reward == g.outcome_reward(twin) == 2.0
    assert environment.move("left") == g.GAME_OVER
    assert environment.get_reward() == reward
    assert environment.reset(seed=5) == first


def test_the_environment_ends_on_an_argument_of_another_type():
    environment = g.Game2048Environment()
    assert environment.move(3) == g.GAME_OVER
    assert environment.get_reward() == -1.0


@pytest.mark.parametrize("arguments", ["[" * 100_000, "[1]", "{}", "left"])
def test_the_criteria_count_arguments_without_a_direction_as_malformed(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": g.Game(0).render()}, answer])
    assert replay(trajectory).fault == "malformed"


def tiny_policy():
    """Return a random Qwen3 with the nano model's chat template, and its byte-level tokenizer."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from data import chat_format

    letters = pre_tokenizers.ByteLevel.alphabet()
    bpe = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(sorted(letters))}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True) for token in chat_format.SPECIAL_TOKENS])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = chat_format.CHAT_TEMPLATE
    tokenizer.response_template = chat_format.RESPONSE_TEMPLATE
    config = transformers.Qwen3Config(
        vocab_size=320, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=8192, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config), tokenizer


def test_stock_trl_plays_whole_games(tmp_path, monkeypatch):
    """Only the model's answers are scripted: random legal moves, and text once the game is over."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    model, tokenizer = tiny_policy()
    config = trl.GRPOConfig(
        str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_completion_length=4000,
        max_steps=1, use_cpu=True, bf16=False, report_to=[],
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in g.scenarios("train", 4)]
    factory = partial(g.Game2048Environment, winning_tile=16)
    trainer = trl.GRPOTrainer(
        model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        environment_factory=factory,
    )  # fmt: skip
    rng, prompts = random.Random(0), []

    def answer(prompt_ids, *_, **__):
        prompts.extend(map(tokenizer.decode, prompt_ids))
        boards = [g.board_of(text.split("<|im_end|>")[-2]) for text in prompts[-len(prompt_ids) :]]
        moves = [board and rng.choice(g.legal_moves(tuple(map(tuple, board)))) for board in boards]
        call = '<tool_call>{"name": "move", "arguments": {"direction": "%s"}}</tool_call><|im_end|>'
        return [tokenizer.encode(call % move if move else "done<|im_end|>") for move in moves], None

    monkeypatch.setattr(trainer, "_generate_single_turn", answer)
    trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    games = [environment.game for environment in trainer.environments]
    assert len({game.seed for game in games}) == 1
    assert len(games) == 4
    assert all(game.ended_by == "won" and len(game.turn_rewards) == game.moves for game in games)
    assert trainer._metrics["train"]["rewards/Game2048Environment/mean"] == [2.0]
    first = [{"role": "user", "content": g.Game(games[0].seed).render()}]
    assert prompts[0] == tokenizer.apply_chat_template(
        first, tools=[g.MOVE_TOOL], add_generation_prompt=True, tokenize=False
    )
    assert g.GAME_OVER in prompts[-1]
