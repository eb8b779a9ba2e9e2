"""The adapters of gymnasium and TextArena, with the packages themselves."""

import asyncio
import random
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from openai import AsyncOpenAI
from scripted_client import ScriptedClient

from art_nb.environments import BrokenEnvironment, environment_tools, rollout_environment
from art_nb.environments.adapters import textarena as adapter
from art_nb.environments.adapters.base import import_extra
from art_nb.environments.adapters.gymnasium import GymnasiumEnvironment
from art_nb.environments.adapters.textarena import TextArenaEnvironment, model_player, random_player


def play(factory, *answers, row=None, **options):
    client = ScriptedClient(*answers)
    return asyncio.run(rollout_environment(client, factory, model="m", row=row, turn_rewards=True, **options))


class TestGymnasium:
    gym = pytest.importorskip("gymnasium", reason="needs the extra gymnasium")

    WAY = ("down", "down", "right", "right", "down", "right")

    def test_frozen_lake_is_crossed(self):
        trajectory = play(lambda: GymnasiumEnvironment("FrozenLake-v1", is_slippery=False), *(f"I go {way}." for way in self.WAY))
        first, *_, last = [m["content"] for m in trajectory.messages()]
        assert first.splitlines()[:4] == ["Go from S to G over F; H ends the game.", "Actions: left, down, right, up.", "[S]FFF", "FHFH"]
        assert last.endswith("You are in row 3, column 3.\nThe game is over.") and trajectory.reward == 1.0
        assert trajectory.turn_rewards == [0, 0, 0, 0, 0, 1] and trajectory.metrics["terminated"] and not trajectory.metrics["truncated"]

    @pytest.mark.parametrize("game", ["FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1"])
    def test_a_game_gives_gymnasiums_rewards(self, game):
        """Random actions, made once through the adapter and once in gymnasium itself."""
        names = re.search(r"Actions: (.*)\.", GymnasiumEnvironment(game).reset())[1].split(", ")
        rng = random.Random(3)
        chosen = [rng.choice(names) for _ in range(30)]
        trajectory = play(lambda: GymnasiumEnvironment(game), *([("act", {"action": name})] for name in chosen), row={"seed": 7}, max_turns=30)
        environment = self.gym.make(game)
        environment.reset(seed=7)
        rewards, ended = [], False
        while not ended and len(rewards) < 30:
            _, reward, terminated, truncated, _ = environment.step(names.index(chosen[len(rewards)]))
            rewards.append(float(reward))
            ended = terminated or truncated
        assert trajectory.turn_rewards == pytest.approx(rewards) and trajectory.metrics["out_of_turns"] != ended

    def test_the_time_limit_of_a_game_truncates_it(self):
        trajectory = play(lambda: GymnasiumEnvironment("CliffWalking-v1", max_episode_steps=4), "up")
        assert trajectory.metrics["truncated"] and not trajectory.metrics["terminated"] and trajectory.reward == -4

    def test_a_passenger_is_described(self):
        text = GymnasiumEnvironment("Taxi-v4").reset(seed=1)
        assert re.search(r"The taxi is in row \d, column \d\. The passenger is at row \d, column \d, and wants to go to row \d, column \d\.", text)
        assert "\x1b" not in text
        assert re.search(r"Your sum is \d+, with (a|no) usable ace\. The dealer shows", GymnasiumEnvironment("Blackjack-v1").reset())

    def test_an_answer_without_an_action_is_no_step(self):
        trajectory = play(lambda: GymnasiumEnvironment("Blackjack-v1"), "I wait", "stick")
        assert "name one of stick, hit" in trajectory.messages()[2]["content"]
        assert trajectory.metrics["steps"] == 1 and trajectory.metrics["tool_failures"] == 1

    def test_what_text_cannot_represent_is_refused(self):
        with pytest.raises(ValueError, match="only discrete actions can be named"):
            GymnasiumEnvironment("Pendulum-v1")
        with pytest.raises(ValueError, match="CartPole-v1 has the observation space Box.*give `describe`"):
            GymnasiumEnvironment("CartPole-v1")
        with pytest.raises(ValueError, match="has 2 actions, not 3"):
            GymnasiumEnvironment("Blackjack-v1", actions=["a", "b", "c"])

    def test_another_game_with_a_description_of_ones_own(self):
        factory = lambda: GymnasiumEnvironment("CartPole-v1", actions=["left", "right"], describe=lambda _, x: f"{x[2]:.2f}")  # noqa: E731
        trajectory = play(factory, "left", "right")
        named = lambda: GymnasiumEnvironment("CartPole-v1", actions=["Go", "Go on"], describe=lambda _, x: "")  # noqa: E731
        assert play(named, "Go on", "I go, then GO ON.").metrics["tool_failures"] == 0
        assert re.fullmatch(r"Actions: left, right\.\n-?\d\.\d\d", trajectory.messages()[0]["content"])
        assert trajectory.reward == len(trajectory.choices()) and trajectory.metrics["terminated"]


def test_a_random_player_remembers_moves_that_only_the_rules_list():
    messages = [("user", "Available Moves: '[0]', '[1]'"), ("assistant", "[0]"), ("user", "Your turn.")]
    assert random_player()([{"role": role, "content": content} for role, content in messages]) in ("[0]", "[1]")


def listed_move(messages):
    return random_player(0)(messages)


class TestTextArena:
    arena = pytest.importorskip("textarena", reason="needs the extra textarena")

    @pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0", "SimpleTak-v0"])
    @pytest.mark.parametrize("player", [0, 1])
    def test_a_game_is_played_to_its_end(self, game, player):
        trajectory = play(lambda: TextArenaEnvironment(game), listed_move, row={"seed": 5, "player": player}, max_turns=80)
        assert trajectory.metrics["moves"] == trajectory.metrics["turns"] == len(trajectory.choices())
        assert trajectory.reward in (-1, 0, 1) and not trajectory.metrics["out_of_turns"] and not trajectory.metrics["invalid_move"]
        assert f"Player {player}" in trajectory.messages()[0]["content"]
        assert trajectory.messages()[-1]["content"].startswith("The game is over.")
        again = play(lambda: TextArenaEnvironment(game), listed_move, row={"seed": 5, "player": player}, max_turns=80)
        assert again.messages() == trajectory.messages() and again.reward == trajectory.reward

    def test_the_winner_of_tic_tac_toe_is_paid(self):
        opponent = iter(["[3]", "[4]"])
        factory = lambda: TextArenaEnvironment("TicTacToe-v0", opponent=lambda messages: next(opponent))  # noqa: E731
        trajectory = play(factory, "[0]", "[1]", [("act", {"move": "[2]"})])
        assert trajectory.reward == 1 and trajectory.metrics["won"] and trajectory.turn_rewards == [0, 0, 1]

    def test_the_opponent_sees_its_own_side_of_the_conversation(self):
        seen = []

        def opponent(messages):
            seen.append([dict(message) for message in messages])
            return ["[3]", "[4]", "[5]"][len(seen) - 1]

        trajectory = play(lambda: TextArenaEnvironment("TicTacToe-v0", opponent=opponent), "[0]", "[1]", "[8]")
        assert "You are Player 1" in seen[0][0]["content"] and seen[1][1] == {"role": "assistant", "content": "[3]"}
        assert trajectory.reward == -1

    def test_each_observation_is_shown_once(self):
        """By default TextArena repeats the rules and all earlier boards before each new one."""
        asked = []

        def opponent(messages):
            asked.append(messages)
            return f"[{len(asked) + 2}]"

        trajectory = play(lambda: TextArenaEnvironment("TicTacToe-v0", opponent=opponent), "[0]", "[1]", "[8]")
        for messages in (trajectory.messages()[:-1], asked[-1]):
            texts = [m["content"] for m in messages if m["role"] == "user"]
            assert ["You are Player" in text for text in texts] == [True, False, False]
            assert [text.count("Available Moves") for text in texts[1:]] == [2, 2]  # after each of the two new moves

    def test_an_invalid_move_loses(self):
        trajectory = play(lambda: TextArenaEnvironment("TicTacToe-v0"), "the middle")
        assert trajectory.reward == -1 and trajectory.metrics["invalid_move"]

    def test_a_game_of_one_player(self):
        trajectory = play(lambda: TextArenaEnvironment("TowerOfHanoi-v0", players=1), *("[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"))
        assert trajectory.reward == 1 and trajectory.metrics["moves"] == 7
        assert trajectory.metrics["won"]

    def test_a_part_of_the_way_is_no_victory(self):
        """In FrozenLake, a player who falls into a hole is paid the part of the way that it has gone."""
        lost = play(lambda: TextArenaEnvironment("FrozenLake-v0", players=1), "[down]", "[right]", row={"seed": 5})
        assert 0 < lost.reward < 1 and "hole" in lost.messages()[-1]["content"] and not lost.metrics["won"]

    def test_an_opponent_needs_a_blocking_client(self):
        with pytest.raises(TypeError, match=r"openai_client\(sync=True\)"):
            model_player(AsyncOpenAI(api_key="x"), "old")

    def test_a_model_can_be_the_opponent(self):
        asked = []

        def create(**request):
            asked.append(request)
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=listed_move(request["messages"])))])

        client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        factory = lambda: TextArenaEnvironment("TicTacToe-v0", opponent=model_player(client, "old", temperature=0.5))  # noqa: E731
        trajectory = play(factory, listed_move, row={"player": 1})
        assert trajectory.metrics["moves"] and asked[0]["model"] == "old" and asked[0]["temperature"] == 0.5

    def test_a_failing_opponent_costs_the_rollout(self):
        with pytest.raises(BrokenEnvironment, match="lists no moves to choose from"):
            play(lambda: TextArenaEnvironment("Nim-v0"), "[0 1]")
        with pytest.raises(BrokenEnvironment, match="the opponent raised ZeroDivisionError"):
            play(lambda: TextArenaEnvironment("Nim-v0", opponent=lambda messages: 1 / 0), "[0 1]")
        with pytest.raises(ValueError, match="players is 4"):
            TextArenaEnvironment("SecretMafia-v0", players=4)

    def test_games_leave_the_global_random_numbers_alone(self):
        random.seed(1)
        expected = random.random()
        random.seed(1)
        TextArenaEnvironment("KuhnPoker-v0").reset(seed=3)
        assert random.random() == expected


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"gymnasium is not installed: pip install 'art-nb\[gymnasium\]'"):
        GymnasiumEnvironment("FrozenLake-v1")


def test_warnings_of_a_packages_own_code_are_not_shown(tmp_path, monkeypatch, recwarn):
    (tmp_path / "written_long_ago.py").write_text('VALUE = 1 if "a" is "a" else 0')
    monkeypatch.syspath_prepend(tmp_path)
    assert import_extra("written_long_ago", "games").VALUE == 1 and not recwarn.list
    monkeypatch.setattr("warnings.catch_warnings", None)  # the filters are left alone once a package is loaded
    assert import_extra("written_long_ago", "games").VALUE == 1


def test_a_package_that_another_thread_imports_is_waited_for(tmp_path, monkeypatch):
    """Each rollout's environment is made in a thread of its own."""
    (tmp_path / "written_slowly.py").write_text("import time\ntime.sleep(0.3)\nVALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: import_extra("written_slowly", "games").VALUE, range(8))) == [1] * 8


def test_the_tools_have_schemas():
    for environment in (GymnasiumEnvironment, TextArenaEnvironment):
        assert list(environment_tools(object.__new__(environment))) == ["act"]
    assert adapter.TextArenaEnvironment.plain_tool == "act"
