"""Entry points, one file each: thin shells around `sweep` that read a command line and print."""
