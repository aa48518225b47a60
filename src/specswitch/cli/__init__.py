"""The `specswitch` command: `main` puts it together, each sub-command has its own module."""
