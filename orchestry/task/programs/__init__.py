"""Agents that live in a program of the user's own, of any framework: the program calls models at
an address on this machine, and the run answers."""
