"""Backend ppo: small neural policies, which learn by PPO from many games at once."""
