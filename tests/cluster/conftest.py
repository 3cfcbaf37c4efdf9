from nodes import cluster  # noqa: F401
