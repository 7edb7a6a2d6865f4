//! Carries out the actions of a training step on the model of one rank, and those of a forward pass
//! for an evaluation. Their order is that of [`schema::StepGraph`].

use std::time::Instant;

use device::backend::{InputGradient, LossArguments};
use device::cache::RowAccess;
use device::{Backend, MatrixShape};
use schema::stage::{ActionBatch, ActionPart, DenseBucket, Section, StageAction};
use schema::{Op, Stage};

use super::{ActionTime, Buffers, Model, Purpose, RunStep};
use crate::Error;
use crate::context::RankContext;
use crate::dense::{BucketParameters, DenseStep};
use crate::embedding::input_dist::BatchUse;
use crate::embedding::stored_tile::FetchTime;
use crate::layer::interaction::InteractionGiven;
use crate::layer::logit::LogitGiven;
use crate::layer::mlp::MlpGiven;
use crate::profile::TimedAction;
use crate::share::SampleShare;

impl<B: Backend> Model<B> {
    /// Carries out all actions of a training step.
    ///
    /// # Errors
    /// [`Error::Stage`].
    pub(super) fn run_step(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        step: RunStep,
    ) -> Result<(), Error> {
        self.check(share.batch)?;
        self.action_times.resize(self.graph.actions.len(), ActionTime::default());
        let mut began = Instant::now();
        for i in 0..self.graph.actions.len() {
            let StageAction { stage, part, batch, .. } = self.graph.actions[i];
            context.profiler.set_stage(Some(stage));
            let (result, step) = match batch {
                ActionBatch::This => (
                    self.run_stage(context, share, Purpose::Training(step), stage, part),
                    step.number,
                ),
                ActionBatch::Next if stage == Stage::FetchRows => {
                    (self.embedding.fetch_ahead(context), step.number + 1)
                }
                ActionBatch::Next => (self.embedding.start_next(context), step.number + 1),
            };
            result.map_err(Error::in_stage(stage, step))?;
            let ended = Instant::now();
            let waited = context.record_exchange(&TimedAction { stage, part, began, ended });
            self.action_times[i] = ActionTime { elapsed: ended - began, waited };
            began = ended;
        }
        context.profiler.set_stage(None);
        Ok(())
    }

    /// Carries out the forward pass of an evaluation, up to the logits.
    ///
    /// # Errors
    /// As [`Model::evaluate`].
    pub(super) fn run_forward(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
    ) -> Result<(), Error> {
        self.check(share.batch)?;
        for i in 0..self.graph.actions.len() {
            let StageAction { stage, part, batch, .. } = self.graph.actions[i];
            if batch == ActionBatch::This && stage.is_forward() {
                self.run_stage(context, share, Purpose::Evaluation, stage, part)?;
            }
        }
        self.embedding.release_rows(RowAccess::Read);
        Ok(())
    }

    fn run_stage(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        purpose: Purpose,
        stage: Stage,
        part: ActionPart,
    ) -> Result<(), Error> {
        match stage {
            Stage::InputDistribution => self.distribute(context, share, purpose, part),
            Stage::FetchRows => {
                let time = match purpose {
                    Purpose::Training(_) => FetchTime::InStep,
                    Purpose::Evaluation => FetchTime::Evaluation,
                };
                self.embedding.fetch_rows(context.device_queue(), time)
            }
            Stage::Copy | Stage::Lookup | Stage::PooledExchange => {
                self.run_embedding(context, share, purpose, stage, part)
            }
            Stage::BottomMlp | Stage::Interaction | Stage::TopMlp => {
                self.run_dense(context, share.batch.size, stage)
            }
            Stage::Loss => self.loss(context, share, purpose),
            Stage::InteractionBackward => self.backward_interaction(context, share.batch.size),
            Stage::GradientExchange => {
                let SampleShare { batch, global_size, .. } = share;
                let (sparse, d_pooled) = (&batch.sparse, &self.buffers.d_pooled);
                let (embedding, scalars) = (&mut self.embedding, &self.scalars);
                embedding.exchange_gradients(context, part, sparse, global_size, d_pooled, scalars)
            }
            Stage::GroupExchange => self.exchange_groups(context, purpose, part),
            Stage::RowTerms => self.embedding.exchange_terms(context, &self.scalars),
            Stage::EmbeddingUpdate => {
                let (sparse, d_pooled) = (&share.batch.sparse, &self.buffers.d_pooled);
                self.embedding.update(context, sparse, d_pooled, &mut self.scalars)
            }
            Stage::DenseBackward(bucket) => self.backward_bucket(context, share.batch.size, bucket),
            Stage::AllReduce(bucket) => {
                let (dense, scalars) = (&mut self.parameters, &mut self.scalars);
                let bucket = bucket_parameters(&self.graph.buckets, bucket);
                match part {
                    ActionPart::Finish => dense.finish_sums(context, scalars, bucket),
                    _ => dense.start_sums(context, scalars, bucket),
                }
            }
            Stage::DenseUpdate(bucket) => {
                let bucket = bucket_parameters(&self.graph.buckets, bucket);
                if context.comm.world_size() == 1 {
                    return self.parameters.update_alone(context, &self.scalars, bucket.parameters);
                }
                self.parameters.update_from_sums(context, &self.scalars, bucket)
            }
            Stage::LossSum => Ok(()),
        }
    }

    /// Sums gradients over replica groups, or averages tables over them if that is due.
    fn exchange_groups(
        &mut self,
        context: &mut RankContext<B>,
        purpose: Purpose,
        part: ActionPart,
    ) -> Result<(), Error> {
        match purpose {
            Purpose::Training(_) if self.groups.sums_gradients() => {
                self.embedding.sum_groups(context, part, &self.scalars)
            }
            Purpose::Training(step) if self.groups.are_equal_after(step.number + 1) => {
                self.average_groups(context, step.number + 1)
            }
            _ => Ok(()),
        }
    }

    fn distribute(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        purpose: Purpose,
        part: ActionPart,
    ) -> Result<(), Error> {
        let (sparse, first) = (&share.batch.sparse, share.first_sample);
        match (purpose, part) {
            (Purpose::Training(_), ActionPart::Finish) => {
                self.embedding.finish_next(context, sparse, first)
            }
            (Purpose::Training(_), _) => {
                self.embedding.distribute(context, sparse, first, BatchUse::Training)
            }
            // The exchange under way, if any, is that of a batch to be trained.
            _ => self.embedding.distribute(context, sparse, first, BatchUse::Evaluation),
        }
    }

    fn run_embedding(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        purpose: Purpose,
        stage: Stage,
        part: ActionPart,
    ) -> Result<(), Error> {
        let (batch, samples) = (share.batch, share.batch.size);
        let scalars = purpose.choose(&mut self.scalars, &mut self.evaluation);
        let Buffers { input, pooled, .. } = &mut self.buffers;
        match stage {
            Stage::Lookup => self.embedding.look_up(context, &batch.sparse, pooled, scalars),
            Stage::PooledExchange => {
                self.embedding.exchange_vectors(context, part, pooled, samples)
            }
            _ => {
                self.embedding.copy(context.device_queue(), &batch.sparse)?;
                if samples == 0 {
                    return Ok(());
                }
                let RankContext { device, queue, profiler, .. } = context;
                let shape = MatrixShape::new(samples, self.dense_features);
                let op = Op::Pack { elements: batch.dense.len() };
                Ok(profiler.op(op, || device.pack(queue, &batch.dense, shape, input))?)
            }
        }
    }

    fn run_dense(
        &mut self,
        context: &mut RankContext<B>,
        samples: usize,
        stage: Stage,
    ) -> Result<(), Error> {
        let Buffers { input, pooled, logits, .. } = &mut self.buffers;
        let parameters = &self.parameters;
        match stage {
            _ if samples == 0 => Ok(()),
            Stage::BottomMlp => self.bottom.forward(context, parameters, input, samples),
            Stage::Interaction => {
                let dense = self.bottom.output(input);
                self.interaction.forward(context, parameters, dense, pooled, samples)
            }
            _ => {
                let joined = self.interaction.output();
                self.top.forward(context, parameters, joined, samples)?;
                let last = self.top.output(joined);
                self.logit.forward(context, parameters, last, logits, samples)?;
                let Some(wide) = &self.wide else { return Ok(()) };
                wide.forward(context, parameters, joined, logits, samples)
            }
        }
    }

    pub(super) fn loss(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let scalars = purpose.choose(&mut self.scalars, &mut self.evaluation);
        let RankContext { device, queue, profiler, .. } = context;
        let Buffers { logits, d_logits, probabilities, .. } = &mut self.buffers;
        let arguments = LossArguments {
            kind: self.loss,
            logits,
            labels: &share.batch.labels,
            gradient: d_logits,
            probabilities,
        };
        let op = Op::Loss { batch_size: share.batch.size };
        Ok(profiler.op(op, || device.loss(queue, arguments, scalars))?)
    }

    /// Computes the gradients of a bucket's parameters.
    fn backward_bucket(
        &mut self,
        context: &mut RankContext<B>,
        samples: usize,
        bucket: u16,
    ) -> Result<(), Error> {
        let buckets = &self.graph.buckets;
        let DenseBucket { section, layers, parameters, .. } = &buckets[usize::from(bucket)];
        if samples == 0 {
            // A rank without samples still contributes zero gradients to the sum over ranks.
            let parameters = parameters.clone();
            return self.parameters.clear_gradients(context.device_queue(), parameters);
        }
        let Buffers { input, d_logits, d_last, d_interaction, d_dense, .. } = &mut self.buffers;
        let mut step = DenseStep { dense: &mut self.parameters, scalars: &self.scalars };
        match section {
            Section::Top => {
                let (joined, hidden) = (self.interaction.output(), self.top.layer_count());
                if layers.end > hidden {
                    let (x, after_relu) = (self.top.output(joined), self.logit_after_relu);
                    let given = LogitGiven { x, d_y: &*d_logits, after_relu, samples };
                    self.logit.backward(context, step.dense, given, d_last)?;
                    if let Some(wide) = &self.wide {
                        let d_joined = &mut *d_interaction;
                        wide.backward(context, step.dense, joined, d_logits, d_joined, samples)?;
                    }
                }
                let layers = layers.start..layers.end.min(hidden);
                let given = MlpGiven { x: joined, d_y: d_last, samples, layers };
                // The wide term has written its part of the gradient before.
                let gradient = match self.wide {
                    Some(_) => InputGradient::Accumulate,
                    None => InputGradient::Write,
                };
                self.top.backward(context, &mut step, given, Some((d_interaction, gradient)))
            }
            Section::Interaction => {
                let layers = layers.clone();
                self.interaction.backward_layers(context, &mut step, d_interaction, samples, layers)
            }
            Section::Bottom => {
                let given = MlpGiven { x: input, d_y: d_dense, samples, layers: layers.clone() };
                self.bottom.backward(context, &mut step, given, None)
            }
        }
    }

    fn backward_interaction(
        &mut self,
        context: &mut RankContext<B>,
        samples: usize,
    ) -> Result<(), Error> {
        if samples == 0 {
            return Ok(());
        }
        let Buffers { input, pooled, d_interaction, d_dense, d_pooled, .. } = &mut self.buffers;
        let dense = self.bottom.output(input);
        let given = InteractionGiven { dense, pooled, d_out: d_interaction, samples };
        self.interaction.backward(context, given, d_dense, d_pooled)?;
        // The output of the bottom MLP is used several times, so the gradient of the last ReLU is
        // applied once to the sum of all gradients.
        self.bottom.last_relu_backward(context, d_dense, samples)
    }
}

fn bucket_parameters(buckets: &[DenseBucket], bucket: u16) -> BucketParameters {
    let parameters = buckets[usize::from(bucket)].parameters.clone();
    BucketParameters { parameters, is_first: bucket == 0 }
}
