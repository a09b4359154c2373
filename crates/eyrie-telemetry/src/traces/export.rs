//! Hands traces to OpenTelemetry's SDK, which sends them in batches from a thread of its own. What
//! does not fit into its queue is dropped: a collector that does not answer takes no more memory.

use super::client::{Client, FailureNotice};
use super::collector::Collector;
use super::trace::{attribute, Moment, Phase, Trace};
use crate::job_time::JobTime;
use crate::named::{Named, Say};
use anyhow::Context as _;
use opentelemetry::trace::{Span, SpanBuilder, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::Context;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use opentelemetry_sdk::Resource;
use std::sync::Arc;
use std::time::Duration;

/// How long a span waits for others that go with it.
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// How long sending a batch may take, with what is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most spans that wait to be sent: a few MB.
const QUEUE: usize = 4096;

/// Sends traces to one collector.
pub struct Exporter {
    failure: Arc<FailureNotice>,
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Exporter {
    /// # Errors
    /// When variables of OpenTelemetry in the environment say what cannot be.
    pub fn begin(to: Collector, named: &Named, say: Say) -> anyhow::Result<Exporter> {
        let failure = Arc::new(FailureNotice::new(to.clone(), say));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(to.to_string())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(PATIENCE)
            .with_http_client(Client::new(failure.clone())?)
            .build()
            .context("traces cannot be sent: see the variables OTEL_* of the environment")?;
        let batches = BatchConfigBuilder::default()
            .with_scheduled_delay(BATCH_EVERY)
            .with_max_queue_size(QUEUE)
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource(named))
            .build();
        let tracer = provider.tracer("eyrie");
        Ok(Exporter { failure, provider, tracer })
    }

    /// Has a trace sent.
    pub fn send(&self, trace: &Trace, time: &JobTime) {
        let Trace { name, start, end, attributes, error, course } = trace;
        let of_day = time.of_day();
        let root = SpanBuilder::from_name(*name)
            .with_start_time(of_day(*start))
            .with_attributes(attributes.clone());
        let mut root = self.tracer.build_with_context(root, &Context::new());
        for Moment { name, at, text } in &course.moments {
            let text = vec![attribute("eyrie.cause", text.clone())];
            root.add_event_with_timestamp(*name, of_day(*at), text);
        }
        if let Some(error) = error {
            root.set_status(Status::error(error.clone()));
        }
        let parent = Context::new().with_remote_span_context(root.span_context().clone());
        for Phase { name, start, end, attributes } in &course.phases {
            let phase = SpanBuilder::from_name(name.clone())
                .with_start_time(of_day(*start))
                .with_attributes(attributes.clone());
            let mut phase = self.tracer.build_with_context(phase, &parent);
            phase.end_with_timestamp(of_day(*end));
        }
        root.end_with_timestamp(of_day(*end));
    }

    /// Sends what is left, but for no longer than that.
    pub fn finish(self, within: Duration) {
        if self.provider.shutdown_with_timeout(within).is_err() {
            // If it was refused that was said.
            self.failure.say_once("no answer before the end of the job");
        }
    }
}

/// What all traces of the job are of. The standard variables may add to it.
fn resource(named: &Named) -> Resource {
    let Named { job, domain } = named;
    let domain = domain.as_ref().map(|domain| attribute("eyrie.domain", domain.clone()));
    let about = [attribute("eyrie.job", job.clone())].into_iter().chain(domain);
    let resource = Resource::builder().with_attributes(about);
    // Else the variable has named it.
    match std::env::var_os("OTEL_SERVICE_NAME") {
        None => resource.with_service_name("eyrie").build(),
        Some(_) => resource.build(),
    }
}
