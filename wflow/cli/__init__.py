"""The command `wflow`: solve configurations; inspect, compare and verify run files. It may import
every package and is imported by scripts alone. Start with `commands`.
"""

from wflow.cli.commands import guarded, main, script

__all__ = [
    "guarded",
    "main",
    "script",
]
