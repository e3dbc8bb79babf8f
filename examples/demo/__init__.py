"""A small embodied-RL program: a two-phase policy learns MuJoCo tasks with PPO, natively and with a plan."""
