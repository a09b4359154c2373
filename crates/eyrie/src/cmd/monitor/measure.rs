#[derive(clap::Args)]
pub struct NoiseArgs {}
#[derive(clap::Args)]
pub struct BenchArgs {}
#[derive(clap::Args)]
pub struct SlowdownArgs {}
#[derive(clap::Args)]
pub struct PapersArgs {}
pub fn noise(_: &NoiseArgs) -> anyhow::Result<i32> {
    todo!()
}
pub fn bench(_: &BenchArgs) -> anyhow::Result<i32> {
    todo!()
}
pub fn slowdown(_: &SlowdownArgs) -> anyhow::Result<i32> {
    todo!()
}
pub fn papers(_: &PapersArgs) -> anyhow::Result<i32> {
    todo!()
}
