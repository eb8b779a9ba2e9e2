"""Two tasksets as verifiers' documentation writes them: one answered in text, one with tools and a stop condition."""

import sys
from types import ModuleType

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumConfig(vf.TasksetConfig):
    tasks: int = 4


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def exact(self, trace) -> float:
        return float((trace.assistant_messages[-1].content or "").strip() == self.data.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.assistant_messages[-1].content or ""))


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for i in range(self.config.tasks):
            yield SumTask(SumData(prompt=f"What is {i} + 1?", answer=str(i + 1), system_prompt="Answer with a number."), self.config.task)


class VaultTools(vf.Toolset):
    TOOL_PREFIX = "vault"

    async def setup_task(self, task):
        self.code = task.code

    @vf.tool
    def turn(self, digit: int) -> str:
        """Turn the dial."""
        return "open" if digit == self.code else "closed"


class VaultData(vf.TaskData):
    code: int


class VaultTask(vf.Task[VaultData]):
    @vf.stop
    async def opened(self, trace: vf.Trace) -> bool:
        return trace.last_message.content == "open"

    @vf.reward
    async def is_open(self, trace) -> float:
        return float(trace.last_message.content == "open")

    @classmethod
    def toolsets(cls, config):
        return [VaultTools(vf.ToolsetConfig())]


class VaultTaskset(vf.Taskset[VaultTask, vf.TasksetConfig]):
    def load(self):
        for code in (3, 5):
            yield VaultTask(VaultData(prompt="Open the vault.", code=code), self.config.task)


class BoxTask(vf.Task[VaultData]):
    NEEDS_CONTAINER = True


class BoxTaskset(vf.Taskset[BoxTask, vf.TasksetConfig]):
    def load(self):
        yield BoxTask(VaultData(prompt="Open the box.", code=1), self.config.task)


class RunTask(SumTask):
    @vf.reward
    async def solved(self, trace, runtime) -> float:
        return 1.0


class AskTask(SumTask):
    @vf.stop
    async def asked(self, request: vf.Request) -> bool:
        return False


class BareTools(VaultTools):
    TOOL_PREFIX = None

    @vf.tool
    def answer(self, text: str) -> str:
        """Answer the phone."""
        return text


class TwiceTask(VaultTask):
    @classmethod
    def toolsets(cls, config):
        return [VaultTools(vf.ToolsetConfig()), VaultTools(vf.ToolsetConfig())]


class BareTask(VaultTask):
    @classmethod
    def toolsets(cls, config):
        return [BareTools(vf.ToolsetConfig())]


def taskset_of(task, data):
    class OneTask(vf.Taskset[task, vf.TasksetConfig]):
        def load(self):
            yield task(data, self.config.task)

    return OneTask


SUM, VAULT = SumData(prompt="What is 1 + 1?", answer="2"), VaultData(prompt="Open the vault.", code=3)
REFUSED = {"run_taskset": (RunTask, SUM), "ask_taskset": (AskTask, SUM), "bare_taskset": (BareTask, VAULT), "twice_taskset": (TwiceTask, VAULT)}


def install():
    """Make the tasksets importable as modules of their own, as installed packages are."""
    refused = [(name, taskset_of(*parts)) for name, parts in REFUSED.items()]
    for name, taskset in (("sums_taskset", SumTaskset), ("vault_taskset", VaultTaskset), ("box_taskset", BoxTaskset), *refused):
        module = ModuleType(name)
        module.__dict__.update({taskset.__name__: taskset, "__all__": [taskset.__name__]})
        module.__spec__ = __spec__
        sys.modules[name] = module
