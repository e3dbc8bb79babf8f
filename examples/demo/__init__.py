"""A small embodied-RL program: a two-phase policy learns MuJoCo tasks with PPO, natively and with a plan.

Read it in this order: `program` is the training loop as a user decorates it, over the components in
`simulator`, `policy` (its networks are in `network`) and `trainer`; `__main__` records, plans and
replays it; `compare` runs both sides in turn and takes their digests.
"""
