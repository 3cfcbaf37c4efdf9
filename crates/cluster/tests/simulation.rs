//! Simulates fifty servers and ten thousand keys on virtual time, to test that the load stays balanced and keys stay
//! with their servers.
//!
//! Every server is a real [`Router`] that receives the heartbeats of the others, one second apart. A key stands for a
//! consumer group that pops every five seconds through some server that a load balancer chose, and is replaced by
//! another after ten minutes on average. The load of a server is the sum of the weights of its keys. The same seed
//! gives the same run, and the plot in `docs/` is checked against it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::affinity::{AffinityEvent, MOVES_MAX, MOVES_WINDOW};
use baton_cluster::load::Load;
use baton_cluster::membership::Membership;
use baton_cluster::{Policy, Router};

const SERVERS: usize = 50;
const JOINING: usize = 5;
const KEYS: usize = 10_000;
/// The load of a server if all were equal.
const MEAN_LOAD: f64 = 0.66;
const POP_EVERY: u64 = 5;
const KEY_LIFE: u64 = 600;
const DEAD_AFTER: u64 = 5;

const FILLED: u64 = 300;
const JOINED: u64 = 300;
const LEFT: u64 = 600;
const SHIFTED: u64 = 900;
const END: u64 = 1200;
/// Seconds until balance after a disturbance.
const SETTLING: u64 = 120;
/// Highest to lowest load.
const RATIO_MAX: f64 = 1.3;

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Server {
    id: Arc<str>,
    router: Router,
    load: f64,
    alive: bool,
    sequence: u64,
}

struct Key {
    name: String,
    weight: f64,
    /// The server that the load balancer sends its pops to.
    entry: usize,
    served_by: Option<usize>,
    moves: Vec<u64>,
}

/// The measurements of one second.
struct Second {
    highest: f64,
    lowest: f64,
    moves: usize,
}

struct Simulation {
    random: Random,
    servers: Vec<Server>,
    places: BTreeMap<Arc<str>, usize>,
    keys: Vec<Key>,
    generation: usize,
    moves: usize,
    most_moves: usize,
}

impl Simulation {
    fn new(seed: u64, count: usize) -> Self {
        let mut simulation = Self {
            random: Random(seed),
            servers: Vec::new(),
            places: BTreeMap::new(),
            keys: Vec::new(),
            generation: 0,
            moves: 0,
            most_moves: 0,
        };
        (0..count).for_each(|_| simulation.join(0));
        simulation
    }

    fn join(&mut self, now: u64) {
        let id: Arc<str> = format!("server-{:02}", self.servers.len()).into();
        let membership = Membership::new(Arc::clone(&id), now + 1, Duration::from_secs(DEAD_AFTER));
        let router = Router::new(membership, Policy::default());
        self.places.insert(Arc::clone(&id), self.servers.len());
        self.servers.push(Server { id, router, load: 0.0, alive: true, sequence: 0 });
    }

    fn some_server(&mut self) -> usize {
        loop {
            let place = self.random.below(self.servers.len());
            if self.servers[place].alive {
                return place;
            }
        }
    }

    /// One key in ten is five times as heavy as the others.
    fn fresh_key(&mut self) -> Key {
        self.generation += 1;
        let light = MEAN_LOAD * SERVERS as f64 / KEYS as f64 / 1.4;
        let weight = if self.random.below(10) == 0 { 5.0 * light } else { light };
        let name = format!("queue-{}:group", self.generation);
        Key { name, weight, entry: self.some_server(), served_by: None, moves: Vec::new() }
    }

    fn heartbeats(&mut self, now: u64) {
        let at = Duration::from_secs(now);
        let mut told = Vec::new();
        for server in self.servers.iter_mut().filter(|server| server.alive) {
            let x = server.load;
            server.sequence += 1;
            let load = server.router.add_load_sample(Load {
                outstanding: 100.0 * x,
                waiting: 200.0 * x,
                cpu: 100.0 * x,
            });
            let mut envelope = server.router.membership.next_envelope();
            envelope.sequence = server.sequence;
            told.push((envelope, load));
        }
        for server in self.servers.iter_mut().filter(|server| server.alive) {
            for (envelope, load) in told.iter().filter(|(envelope, _)| envelope.sender != server.id) {
                server.router.membership.on_datagram(at, envelope).unwrap();
                server.router.on_heartbeat(at, &envelope.sender, "http://s:1", *load, false);
            }
            for id in server.router.membership.expire(at) {
                server.router.remove_server(&id);
            }
        }
    }

    fn pops(&mut self, now: u64) {
        let at = Duration::from_secs(now);
        for place in 0..self.keys.len() {
            if !(now + place as u64).is_multiple_of(POP_EVERY) {
                continue;
            }
            if !self.servers[self.keys[place].entry].alive {
                self.keys[place].entry = self.some_server();
            }
            let dice = self.random.share();
            let entry = self.keys[place].entry;
            let (chosen, step) = self.servers[entry].router.route_pop(at, &self.keys[place].name, || dice);
            let server = chosen.map_or(entry, |id| self.places[&id]);
            // A server that is not known to be dead yet does not answer, and the server where the pop came in serves
            // it.
            let server = if self.servers[server].alive { server } else { entry };
            self.serve(now, place, server, step);
        }
    }

    fn serve(&mut self, now: u64, place: usize, server: usize, step: AffinityEvent) {
        let key = &mut self.keys[place];
        if let Some(before) = key.served_by.replace(server) {
            self.servers[before].load -= key.weight;
        }
        self.servers[server].load += key.weight;
        if matches!(step, AffinityEvent::Migrated | AffinityEvent::Broken) {
            key.moves.retain(|at| at + MOVES_WINDOW.as_secs() > now);
            key.moves.push(now);
            self.most_moves = self.most_moves.max(key.moves.len());
            self.moves += 1;
        }
    }

    fn churn(&mut self) {
        for place in 0..self.keys.len() {
            if self.random.below(KEY_LIFE as usize) == 0 {
                let fresh = self.fresh_key();
                let old = std::mem::replace(&mut self.keys[place], fresh);
                if let Some(server) = old.served_by {
                    self.servers[server].load -= old.weight;
                }
            }
        }
    }

    fn leave(&mut self, count: usize) {
        for _ in 0..count {
            let place = self.some_server();
            self.servers[place].alive = false;
        }
        let dead: Vec<_> = self.servers.iter().map(|server| !server.alive).collect();
        for key in &mut self.keys {
            if key.served_by.is_some_and(|server| dead[server]) {
                key.served_by = None;
            }
        }
        self.servers.iter_mut().filter(|server| !server.alive).for_each(|server| server.load = 0.0);
    }

    /// One key in twenty becomes four times as heavy, the others lighter, so that the sum stays.
    fn shift(&mut self) {
        for place in 0..self.keys.len() {
            let factor = if self.random.below(20) == 0 { 4.0 } else { 0.85 };
            let key = &mut self.keys[place];
            let more = key.weight * (factor - 1.0);
            key.weight += more;
            if let Some(server) = key.served_by {
                self.servers[server].load += more;
            }
        }
    }

    fn run(mut self) -> (Vec<Second>, usize) {
        let mut seconds = Vec::new();
        for now in 0..END {
            match now {
                JOINED => (0..JOINING).for_each(|_| self.join(now)),
                LEFT => self.leave(JOINING),
                SHIFTED => self.shift(),
                _ => {}
            }
            // All keys have arrived after a minute.
            while self.keys.len() < KEYS.min(KEYS * (now as usize + 1) / 60) {
                let key = self.fresh_key();
                self.keys.push(key);
            }
            let before = self.moves;
            self.heartbeats(now);
            self.pops(now);
            self.churn();
            let loads = self.servers.iter().filter(|server| server.alive).map(|server| server.load);
            let (lowest, highest) =
                loads.fold((f64::MAX, 0.0_f64), |(l, h), load| (l.min(load), h.max(load)));
            seconds.push(Second { highest, lowest, moves: self.moves - before });
        }
        (seconds, self.most_moves)
    }
}

fn worst_ratio(seconds: &[Second], from: u64, to: u64) -> f64 {
    let span = &seconds[from as usize..to as usize];
    span.iter().map(|second| second.highest / second.lowest).fold(0.0, f64::max)
}

fn moved(seconds: &[Second], from: u64, to: u64) -> usize {
    seconds[from as usize..to as usize].iter().map(|second| second.moves).sum()
}

#[test]
fn work_stays_spread_and_keys_stay_where_they_are_through_joins_leaves_and_shifts() {
    let runs: Vec<_> = [1, 3].map(|seed| Simulation::new(seed, SERVERS).run()).into();
    for (seconds, most_moves) in &runs {
        let phases = [
            ("filled", 0, FILLED),
            ("joined", JOINED, LEFT),
            ("left", LEFT, SHIFTED),
            ("shifted", SHIFTED, END),
        ];
        for (name, from, to) in phases {
            let ratio = worst_ratio(seconds, from + SETTLING, to);
            let (moves, late) = (moved(seconds, from, to), moved(seconds, from + SETTLING, to));
            println!("{name}: highest to lowest load {ratio:.3}, {moves} moves, {late} of them late");
            assert!(ratio < RATIO_MAX, "{name}: {ratio}");
            assert!(moves < KEYS / 5, "{name}: {moves}");
        }
        assert!(*most_moves <= MOVES_MAX as usize, "{most_moves}");
    }
    check_plot(&plot(&runs[0].0));
}

/// A steady, skewed load: six hundred keys come in through one server of three and stay there; then each weighs thirty
/// times as much, which is more than that server can carry and not too much for all.
#[test]
fn under_a_steady_skewed_load_affinities_stop_moving_within_thirty_seconds() {
    const HEAVIER: u64 = 60;
    let mut simulation = Simulation::new(11, 3);
    for place in 0..600 {
        let key = simulation.fresh_key();
        simulation.keys.push(Key { entry: 0, weight: 0.06 / 600.0, ..key });
        assert_eq!(simulation.keys[place].served_by, None);
    }
    let mut last_move = 0;
    for now in 0..HEAVIER + 330 {
        if now == HEAVIER {
            simulation.keys.iter_mut().for_each(|key| key.weight *= 30.0);
            simulation.servers.iter_mut().for_each(|server| server.load *= 30.0);
        }
        let before = simulation.moves;
        simulation.heartbeats(now);
        simulation.pops(now);
        if simulation.moves > before {
            last_move = now;
        }
    }
    let loads: Vec<_> = simulation.servers.iter().map(|server| server.load).collect();
    println!("loads {loads:.2?}, {} moves, the last at {last_move} s", simulation.moves);
    assert!(simulation.moves > 100, "the server was overloaded");
    assert!((HEAVIER..HEAVIER + 30).contains(&last_move), "the last move was at {last_move} s");
    assert!(simulation.most_moves <= 2);
    assert!(loads.iter().all(|load| *load < 0.9), "{loads:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut simulation = Simulation::new(seed, 5);
        for now in 0..40 {
            simulation.heartbeats(now);
            if now < 20 {
                let keys: Vec<_> = (0..20).map(|_| simulation.fresh_key()).collect();
                simulation.keys.extend(keys);
            }
            simulation.pops(now);
        }
        simulation.keys.iter().map(|key| key.served_by).collect::<Vec<_>>()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT_EDGE: f64 = 60.0;
const TOP: f64 = 40.0;
const PLOT_WIDTH: f64 = WIDTH - LEFT_EDGE - 20.0;
const LOAD_HEIGHT: f64 = 220.0;
const MOVES_TOP: f64 = TOP + LOAD_HEIGHT + 40.0;
const MOVES_HEIGHT: f64 = 70.0;

/// The run as an SVG: the range from the lowest to the highest load, and the number of moved keys.
fn plot(seconds: &[Second]) -> String {
    let x = |second: usize| LEFT_EDGE + PLOT_WIDTH * second as f64 / END as f64;
    let y = |load: f64| TOP + LOAD_HEIGHT * (1.0 - load.min(1.0));
    let most = seconds.iter().map(|second| second.moves).max().unwrap_or(0).max(10) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT_EDGE}\" y=\"22\" font-size=\"15\">{SERVERS} servers, {KEYS} affinity keys, simulated: lowest and highest load</text>\n"
    );
    let line = |svg: &mut String, from: (f64, f64), to: (f64, f64), style: &str| {
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>",
            from.0, from.1, to.0, to.1
        );
    };
    for tenth in (0..=10).step_by(2) {
        let load = f64::from(tenth) / 10.0;
        line(&mut svg, (LEFT_EDGE, y(load)), (LEFT_EDGE + PLOT_WIDTH, y(load)), "stroke=\"#ddd\"");
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{load:.1}</text>",
            LEFT_EDGE - 8.0,
            y(load) + 4.0
        );
    }
    for load in [0.7, 0.9] {
        line(
            &mut svg,
            (LEFT_EDGE, y(load)),
            (LEFT_EDGE + PLOT_WIDTH, y(load)),
            "stroke=\"#c66\" stroke-dasharray=\"4 4\"",
        );
    }
    let every = (0..seconds.len()).step_by(4);
    let upper = every.clone().map(|second| (x(second), y(seconds[second].highest)));
    let lower = every.clone().rev().map(|second| (x(second), y(seconds[second].lowest)));
    let band: Vec<_> = upper.chain(lower).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polygon points=\"{}\" fill=\"#4a7fb5\" fill-opacity=\"0.55\"/>", band.join(" "));
    for (second, what) in [(JOINED, "5 join"), (LEFT, "5 die"), (SHIFTED, "load shifts")] {
        let at = x(second as usize);
        line(&mut svg, (at, TOP), (at, MOVES_TOP + MOVES_HEIGHT), "stroke=\"#888\" stroke-dasharray=\"2 3\"");
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{what}</text>", at + 4.0, TOP + 12.0);
    }
    let base = MOVES_TOP + MOVES_HEIGHT;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT_EDGE}\" y=\"{:.1}\">keys moved per second (at most {most:.0})</text>",
        MOVES_TOP - 8.0
    );
    for (second, moves) in
        seconds.iter().enumerate().map(|(second, s)| (second, s.moves)).filter(|(_, m)| *m > 0)
    {
        let top = base - MOVES_HEIGHT * moves as f64 / most;
        line(&mut svg, (x(second), base), (x(second), top), "stroke=\"#b5654a\"");
    }
    line(&mut svg, (LEFT_EDGE, base), (LEFT_EDGE + PLOT_WIDTH, base), "stroke=\"#444\"");
    for minute in (0..=END / 60).step_by(5) {
        let at = x((minute * 60) as usize);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{minute} min</text>",
            base + 18.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The plot in the documentation must equal this run's plot.
fn check_plot(plot: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/cluster-simulation.svg");
    if std::env::var_os("BATON_UPDATE_DOCS").is_some() {
        std::fs::write(&path, plot).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == plot, "docs/cluster-simulation.svg is old; BATON_UPDATE_DOCS=1 writes it anew");
}
