"""Run files: schema, writing, resuming and reading.

`schema` names the variables; `store` writes a run, `read` opens it, `digests` compares it with what
was written, `disk` locks and replaces; `driver` is the loop of every solver, with its checkpoints,
signals and paths that blow up. `snapshots` reads one cloud at a time; `results`
replaces the figures and summaries of a study, and `studies` opens its folder as a tree. It imports
`_core`, and `sphere` for clouds read from a run; `heads` and the packages after it may import it.
Start with `schema`, then `driver`.
"""
