"""Run files: schema, writing, resuming and reading.

`schema` names the variables; `runfile` writes and opens runs; `reading` reads untrusted files;
`salvage` those that were cut; `disk` locks and replaces; `digests` verifies every byte; `snapshots`
reads one cloud at a time; `results` replaces the figures and summaries of a study, and `studies`
opens its folder as a tree. It imports `_core`, and `sphere` for clouds read from a run; `heads` and
the packages after it may import it. Start with `schema`, then `runfile`.
"""
