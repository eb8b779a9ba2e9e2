"""Write vllm_0_28_0_signatures.json: requests and responses of vLLM's server, read from its wheel without running it.

pip download --no-deps vllm==0.28.0 --dest wheels      # 315 MB, for Linux
python tests/support/make_vllm_signatures.py wheels/vllm-0.28.0-*.whl
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

TABLE = Path(__file__).parent / "vllm_0_28_0_signatures.json"
OPENAI = "vllm/entrypoints/openai"
CLASSES = {
    f"{OPENAI}/completion/protocol.py": ["CompletionRequest", "CompletionResponse", "CompletionResponseChoice", "CompletionLogProbs"],
    f"{OPENAI}/engine/protocol.py": ["ModelCard", "ModelList", "ErrorResponse", "ErrorInfo"],
    "vllm/entrypoints/serve/lora/protocol.py": ["LoadLoRAAdapterRequest"],
}
FLAGS = [("vllm/engine/arg_utils.py", "EngineArgs"), (f"{OPENAI}/cli_args.py", "BaseFrontendArgs"), (f"{OPENAI}/cli_args.py", "FrontendArgs")]
LORA = "vllm/config/lora.py"
ROUTES = ["vllm/entrypoints/serve/lora/api_router.py", f"{OPENAI}/completion/api_router.py", f"{OPENAI}/models/api_router.py"]


def fields(tree: ast.Module, name: str) -> dict[str, str]:
    """Return the annotated fields of a class and the source text of their types."""
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def routes(tree: ast.Module) -> list[str]:
    """Return method and path of each decorator `router.get(path)` or `router.post(path)`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [f"{call.func.attr.upper()} {call.args[0].value}" for call in calls if call.func.attr in ("get", "post") and call.args
            and isinstance(call.args[0], ast.Constant) and str(call.args[0].value).startswith("/")]  # fmt: skip


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tree = {path: ast.parse(archive.read(path)) for path in {*CLASSES, *dict(FLAGS), *ROUTES, LORA}}
    (ranks,) = (node.value for node in tree[LORA].body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MaxLoRARanks")
    table = {
        "classes": {name: fields(tree[path], name) for path, names in CLASSES.items() for name in names},
        "flags": sorted({f"--{name.replace('_', '-')}" for path, kind in FLAGS for name in fields(tree[path], kind)}),
        "routes": sorted(route for path in ROUTES for route in routes(tree[path])),
        "ranks": list(ast.literal_eval(ranks.slice)),
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
