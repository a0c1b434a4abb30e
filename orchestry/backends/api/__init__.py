"""What a team learns at the prompt level: behaviours that had to earn their place."""
