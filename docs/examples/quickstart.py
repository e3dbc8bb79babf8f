import numpy as np

import rose_trace as rose
from rose_trace.rng import RowGenerator

ROWS = 4096  # pendulums; the policy pushes, REINFORCE learns to keep them up


@rose.component
class Policy:
    def __init__(self):
        self.weights, self.noise = np.zeros(3), RowGenerator(seed=0, rows=ROWS)

    @rose.node(reads="weights", rows=True)  # row i of the result depends on row i alone
    def act(self, obs, draw):
        noise = self.noise.normal(draw, ())  # keyed by seed, row and draw
        return (obs * self.weights).sum(axis=1) + noise, noise

    @rose.node(refreshes="weights")
    def load(self, weights):
        self.weights = weights


@rose.component(batch_states=["episode"])  # one row of it belongs to one row of the batch
class Simulator:
    def __init__(self, first=0, last=ROWS):
        self.rows = np.arange(first, last)

    @classmethod
    def shard(cls, index, count):  # constructor arguments of one shard
        return ROWS * index // count, ROWS * (index + 1) // count

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch):
        self.angle, self.speed = np.cos(self.rows + epoch), np.zeros(len(self.rows))
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], axis=1)

    @rose.node(updates="episode", rows=True)
    def step(self, torque):
        for _ in range(500):
            self.speed += (15 * np.sin(self.angle) + 5 * torque) * 1e-4
            self.angle += self.speed * 1e-4
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], axis=1)


@rose.component
class Trainer:
    def __init__(self):
        self.weights = np.zeros(3)

    @rose.node(updates="weights")
    def update(self, steps):
        for obs, noise, after in steps:
            gain = after[:, 0] - obs[:, 0]
            self.weights += 2 * (((gain - gain.mean()) * noise) @ obs) / len(obs)
        return float(np.mean([after[:, 0].mean() for _, _, after in steps]))

    @rose.node(reads="weights")
    def current(self):
        return self.weights.copy()


@rose.loop
def interact(obs, draw):  # body(carry, item) -> (carry, output)
    torque, noise = policy.act(obs, draw)
    after = sim.step(torque)
    return after, (obs, noise, after)


@rose.loop
def rollout(_, epoch):
    return None, interact(sim.reset(epoch), over=range(10 * epoch, 10 * epoch + 10))[1]


@rose.loop
def learn(_, steps):
    return None, trainer.update(steps)


@rose.iteration
def iteration(index):
    _, epochs = rollout(None, over=range(4 * index, 4 * index + 4))
    _, heights = learn(None, over=epochs)
    policy.load(trainer.current())
    return heights


if __name__ == "__main__":
    policy, sim, trainer = Policy(), Simulator(), Trainer()
    for index in range(3):
        print(iteration(index))
