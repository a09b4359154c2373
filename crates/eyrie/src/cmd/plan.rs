//! `eyrie plan`: where a failed node's ranks go, and what it costs.

#[derive(clap::Args)]
pub struct PlanArgs {}

pub fn run(_args: PlanArgs) -> anyhow::Result<i32> {
    anyhow::bail!("eyrie plan is not built yet")
}
