"""The experiments of the paper, each one command: `vqlab reproduce NAME`."""
