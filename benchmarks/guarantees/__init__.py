"""What Orchestry promises of money, time and interruptions, measured."""
