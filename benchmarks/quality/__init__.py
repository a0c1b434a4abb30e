"""What search, judge, credit and learning are worth, and what the rewards can be tricked into."""
