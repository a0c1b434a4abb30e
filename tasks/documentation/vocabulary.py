"""Words that documents of programs use whatever the program is about."""

from __future__ import annotations

from orchestry import prose

_LIST = """
accept add allow amount append apply argument array ascending attribute available
backward base begin below between bigger bit block bool boolean bound branch build byte
call callable caller case change character check choose class clear close code collection
column combine common compare compute condition constant contain content convert copy
correct count create current cut data date day decimal default define delete depend descend
dictionary differ difference digit distance divide document drop duplicate edge element
empty end entry equal error example exception exist expect extra fail false field file fill
filter final find first fit fixed flag float follow form format function generate get give
given graph greater group handle hold hour ignore include index inside input insert instance
integer interval invalid item iterate join keep key kind known large last least left length
less letter level limit line list long look loop low lower make map mark match maximum mean
measure member merge method middle minimum minute miss mode module most move multiple name
nearest negative nest new node none nothing null number object odd old operator optional
order original otherwise output pad pair parameter parse part pass path pattern percent
place point pop position positive possible prefix present previous print process produce
program property provide put raise random range rate read ready real receive record reduce
remain remove repeat replace represent require reset result return reverse right root round
row rule run same sample score search second select separate separator sequence set shape
short show side sign similar simple single size skip small sort space split square start
state step stop store string subclass substring subtract success suffix sum support swap
take target test text time token top total true tuple turn two type under unique unit update
upper use user usual valid value variable version weight whether whole width word work
wrap write wrong year yield zero
"""
WORDS = frozenset(prose.content(prose.words(_LIST)))
"""Their stems."""
