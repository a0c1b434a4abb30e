"""What runs came to, for people: reads run directories, never the engine."""
