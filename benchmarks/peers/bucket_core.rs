//! Plays so many steps of upstream's core: games of `default`, one after the other, with actions that
//! were drawn before. With `observed`, every agent's observation is made after each step.

use bucket_brigade_core::{Action, BucketBrigade, SCENARIOS};
use rand::{Rng, SeedableRng};
use std::hint::black_box;

const AGENTS: usize = 4;
const HOUSES: u8 = 10;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let steps: usize = args[1].parse().expect("a number of steps");
    let observed = args[2] == "observed";
    let mut random = rand_pcg::Pcg64::seed_from_u64(0);
    let mut drawn = || -> Action {
        [random.gen_range(0..HOUSES), random.gen_range(0..2), random.gen_range(0..2)]
    };
    let acts: Vec<Vec<Action>> = (0..1024).map(|_| (0..AGENTS).map(|_| drawn()).collect()).collect();
    let mut game = BucketBrigade::new(SCENARIOS["default"].clone(), AGENTS, Some(0));
    let mut ends = 0;
    for step in 0..steps {
        if game.step(&acts[step % acts.len()]).done {
            game.reset();
            ends += 1;
        }
        if observed {
            for agent in 0..AGENTS {
                black_box(game.get_observation(agent));
            }
        }
    }
    println!("{ends}");
}
