"""The cost of one design point, as pure functions of numbers.

Nothing here knows of grids, files or configuration. Each function is written for one point; `sweep.evaluate`
batches them with nested `jax.vmap`s over configurations, batch sizes and contexts.
"""
