"""Workers and the server are killed at random instants while a model is trained: `benchmarks.kills` with few kills."""

from benchmarks.kills import measure


def test_under_random_kills_each_episode_counts_once_and_the_adapter_is_the_same():
    result = measure(kills=6, seed=2, groups=2, size=4)
    killed, steps, _ = (result.pop(name) for name in ("killed", "steps", "leased_again"))
    assert sum(killed.values()) == 6 and {victim.split()[0] for victim in killed} == {"server", "worker"}
    assert result == {
        "kills": 6, "episodes": 8 * steps, "raised": {}, "lost": 0, "doubled": 0, "different": 0, "adapter_equal": True,
    }  # fmt: skip
