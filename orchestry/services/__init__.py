"""What costs money or touches the outside."""
