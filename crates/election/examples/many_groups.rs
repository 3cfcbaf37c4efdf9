//! Takes part in many groups in one process at default settings, and prints what share of one core that costs.
//!
//! ```text
//! many_groups [GROUPS] [SECONDS] [STORE] [process]
//! ```
//!
//! With `process` one lease covers all groups.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use baton_election::{Elector, Options, Process, Settings, store};
use baton_env::Stopwatch;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let groups: usize = args.next().map_or(Ok(1000), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(60), |text| text.parse())?;
    let url = args.next().unwrap_or_else(|| "memory:".into());
    let shares = args.next().is_some_and(|word| word == "process");
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let store = store::open(&url).await?;
        let settings = Settings { skip_cold_start: true, ..Settings::default() };
        let options = Options { settings, ..Options::default() };
        let process = match shares {
            true => Some(Process::start(Arc::clone(&store), options.clone()).await?),
            false => None,
        };
        let mut electors = Vec::new();
        for group in 0..groups {
            let name = format!("group-{group}");
            let options = Options { probe: group == 0, ..options.clone() };
            electors.push(match &process {
                Some(process) => process.join(&name, ()).await?,
                None => Elector::start(Arc::clone(&store), &name, options, ()).await?,
            });
        }
        // Start-up (first heartbeats and elections) is not part of the steady state.
        baton_env::sleep(Duration::from_secs(10)).await;
        let leading = electors.iter().filter(|elector| elector.is_coordinator()).count();
        let (watch, before) = (Stopwatch::start(), processor_time()?);
        baton_env::sleep(Duration::from_secs(seconds)).await;
        let used = processor_time()?.saturating_sub(before).as_secs_f64();
        let share = 100.0 * used / watch.elapsed().as_secs_f64();
        println!(
            "{groups} groups, {leading} coordinated: {share:.2} % of one core over {seconds} s on {url}"
        );
        Ok(())
    })
}

/// Processor time of this process, in user and system mode.
fn processor_time() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/self/stat")?;
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}
