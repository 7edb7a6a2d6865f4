//! The list of all configuration keys. `docs/configuration.md`, `rowmill explain config`, the JSON
//! schema and the error messages of configurations are made from it. A test compares it with the
//! types.

use super::ValueKind::{
    Boolean, Choice, Choices, Integer, IntegerPerName, Integers, Number, Rows, Section,
    SectionPerName, Sections, Text, Texts,
};
use super::{ConfigKey, Need};
use crate::layout::LayoutKind;
use crate::optimizer::Optimizer;
use crate::source::DataFormat;

/// Collects the names of `$type::ALL`. A constant cannot use iterators, so a loop copies them.
macro_rules! names {
    ($type:ty) => {{
        let mut names = [""; <$type>::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = <$type>::ALL[at].name();
            at += 1;
        }
        names
    }};
}

const OPTIMIZERS: &[&str] = &names!(Optimizer);
const FORMATS: &[&str] = &names!(DataFormat);
const LAYOUTS: &[&str] = &names!(LayoutKind);
const LAWS: &[&str] = &["uniform", "zipf", "reuse"];
const PARTS: &[&str] = &["hour", "hour_sin", "hour_cos", "weekday", "day", "month", "year", "age"];

const fn key(
    path: &'static str,
    kind: super::ValueKind,
    need: Need,
    range: &'static str,
) -> ConfigKey {
    ConfigKey { path, kind, need, range, meaning: "", example: "" }
}

const fn required(path: &'static str, kind: super::ValueKind, range: &'static str) -> ConfigKey {
    key(path, kind, Need::Always, range)
}

const fn optional(path: &'static str, kind: super::ValueKind, range: &'static str) -> ConfigKey {
    key(path, kind, Need::Never { default: "" }, range)
}

impl ConfigKey {
    const fn or(mut self, default: &'static str) -> Self {
        self.need = Need::Never { default };
        self
    }

    const fn with(mut self, tag: &'static str, need_it: bool) -> Self {
        let default = match self.need {
            Need::Never { default } => default,
            _ => "",
        };
        self.need = Need::With { tag, is_required: need_it, default };
        self
    }

    const fn says(mut self, meaning: &'static str, example: &'static str) -> Self {
        self.meaning = meaning;
        self.example = example;
        self
    }
}

/// All configuration keys, section by section.
pub const KEYS: &[ConfigKey] = &[
    required("model", Section, "").says("The architecture of the network.", "[model]"),
    required("model.name", Text, "").says(
        "A name for people. The run's folder is named after the configuration, or by --run.",
        "name = \"ads\"",
    ),
    optional("model.seed", Integer, "0 or more")
        .or("42")
        .says("Seed of the initial weights.", "seed = 7"),
    optional("model.rows_cap", Integer, "at least 1").says(
        "Largest number of rows per table; larger ids wrap around. Use it to try a large model on \
         a small machine.",
        "rows_cap = 1000000",
    ),
    optional("model.dense_features", Integer, "0 or more")
        .or("the number of dense inputs of [data]")
        .says("Width of the dense input. A time counts once per part.", "dense_features = 13"),
    optional("model.bottom", Integers, "each at least 1").or("[]").says(
        "Widths of the bottom MLP's layers, without its input. The list is empty without dense \
         inputs. With the dot interaction, the last width is the dim of the tables.",
        "bottom = [64, 16]",
    ),
    required("model.top", Integers, "each at least 1, the last 1").says(
        "Widths of the top MLP's layers, without its input; the last layer gives the logit.",
        "top = [128, 64, 1]",
    ),
    required("model.interaction", Section, "").says(
        "How the dense vector and the vectors of the tables are combined.",
        "interaction = { kind = \"dot\" }",
    ),
    required("model.interaction.kind", Choice(&["dot", "cat", "dcn_v2"]), "").says(
        "dot: the dense vector, then the pairwise products of all vectors; without dense inputs, \
         only the products. cat: all vectors, concatenated. dcn_v2: a low-rank cross network over \
         the concatenated vectors.",
        "interaction = { kind = \"dot\" }",
    ),
    optional("model.interaction.order", Choice(&["lower", "upper"]), "")
        .or("lower")
        .with("dot", false)
        .says(
            "Order of the products: lower as in facebookresearch/dlrm, upper as in TorchRec.",
            "interaction = { kind = \"dot\", order = \"upper\" }",
        ),
    optional("model.interaction.itself", Boolean, "").or("false").with("dot", false).says(
        "Whether to keep the products of each vector with itself.",
        "interaction = { kind = \"dot\", itself = true }",
    ),
    required("model.interaction.layers", Integer, "at least 1").with("dcn_v2", true).says(
        "Number of cross layers.",
        "interaction = { kind = \"dcn_v2\", layers = 3, rank = 64 }",
    ),
    required("model.interaction.rank", Integer, "at least 1").with("dcn_v2", true).says(
        "Rank of each cross layer.",
        "interaction = { kind = \"dcn_v2\", layers = 3, rank = 64 }",
    ),
    optional("model.wide", Boolean, "").or("false").says(
        "Whether the logit is also a linear function of the interaction's output, beside the top \
         MLP. With cat, this is a first-order term: a weight for each number and each row of a \
         table. The top MLP needs a hidden layer.",
        "wide = true",
    ),
    required("model.loss", Choice(&["bce_with_logits", "mse"]), "").says(
        "bce_with_logits: binary cross-entropy of the logit. mse: squared error of its sigmoid.",
        "loss = \"bce_with_logits\"",
    ),
    optional("model.init", Choice(&["dlrm", "torchrec"]), "").or("dlrm").says(
        "Initial weights of the MLPs: dlrm as in facebookresearch/dlrm, torchrec as in PyTorch's \
         layers.",
        "init = \"torchrec\"",
    ),
    required("model.tables", Sections, "").says(
        "The embedding tables, in the order of the model.",
        "tables = [{ name = \"user\", rows = \"auto\", dim = 16 }]",
    ),
    required("model.tables[].name", Text, "").says(
        "Unique name of the table. Unless `features` is set, it is also the categorical column \
         whose ids are looked up. `t{0..7}` stands for eight such tables.",
        "{ name = \"user\", rows = \"auto\", dim = 16 }",
    ),
    required("model.tables[].rows", Rows, "at least 1, or \"auto\"").says(
        "Number of rows. \"auto\" takes as many rows as the training data needs. With ids.mode = \
         \"exact\", these are the vocabulary, row 0 for missing and row 1 for rare and unseen \
         categories. For columns of kind integer, the number is the greatest id plus 1.",
        "{ name = \"user\", rows = 100000, dim = 16 }",
    ),
    required("model.tables[].dim", Integer, "at least 1").says(
        "Number of elements of a row. With the dot interaction, all tables must have the same dim.",
        "{ name = \"user\", rows = \"auto\", dim = 16 }",
    ),
    optional("model.tables[].pooling", Choice(&["sum", "mean", "none"]), "").or("sum").says(
        "How the rows of a list of ids become one vector; none keeps one vector per id.",
        "{ name = \"genres\", rows = \"auto\", dim = 16, pooling = \"mean\" }",
    ),
    optional("model.tables[].sequence_length", Integer, "1 to 65536").says(
        "Number of ids of a list that are looked up. Required with pooling = \"none\", and \
         allowed only there.",
        "{ name = \"clicks\", rows = 5000, dim = 16, pooling = \"none\", sequence_length = 20 }",
    ),
    optional("model.tables[].data_type", Choice(&["f32", "f16", "bf16"]), "").or("f32").says(
        "Format of the weights.",
        "{ name = \"user\", rows = 100000, dim = 16, data_type = \"f16\" }",
    ),
    optional("model.tables[].features", Texts, "").or("the table's name").says(
        "The categorical columns whose ids are looked up in this table.",
        "{ name = \"user\", rows = 100000, dim = 16, features = [\"author\", \"reader\"] }",
    ),
    required("optimizer", Section, "").says("How weights are updated.", "[optimizer]"),
    optional("optimizer.row_scope", Choice(&["whole_rows", "column_tiles"]), "")
        .or("whole_rows")
        .says(
            "Columns over which rowwise_adagrad and lamb take a row's mean or norms where the plan \
             splits columns: all columns, or those of each tile, as TorchRec does.",
            "row_scope = \"column_tiles\"",
        ),
    required("optimizer.sparse", Section, "").says(
        "The optimizer of the tables.",
        "sparse = { kind = \"rowwise_adagrad\", learning_rate = 0.02 }",
    ),
    required("optimizer.sparse.kind", Choice(OPTIMIZERS), "")
        .says("The rule.", "sparse = { kind = \"adagrad\", learning_rate = 0.02 }"),
    required("optimizer.sparse.learning_rate", Number, "0 or more")
        .says("Base learning rate.", "sparse = { kind = \"adagrad\", learning_rate = 0.02 }"),
    optional("optimizer.sparse.epsilon", Number, "above 0, or 0 with sgd").or("1e-8").says(
        "Constant added to the root in the denominator of a step. sgd does not use it.",
        "sparse = { kind = \"adagrad\", learning_rate = 0.02, epsilon = 1e-6 }",
    ),
    optional("optimizer.sparse.beta1", Number, "0 to below 1").or("0.9").says(
        "Share of the mean gradient that adam, sparse_adam and lamb keep per step.",
        "beta1 = 0.9",
    ),
    optional("optimizer.sparse.beta2", Number, "0 to below 1").or("0.999").says(
        "Share of the mean squared gradient that adam, sparse_adam and lamb keep per step.",
        "beta2 = 0.99",
    ),
    optional("optimizer.sparse.weight_decay", Number, "0 or more").or("0").says(
        "Weight decay. A row of a table decays when a batch looks it up.",
        "weight_decay = 1e-5",
    ),
    optional("optimizer.sparse.weight_decay_mode", Choice(&["none", "l2", "decoupled"]), "")
        .or("none")
        .says(
            "Whether the decay is added to the gradient (l2) or applied separately (decoupled).",
            "weight_decay_mode = \"l2\"",
        ),
    required("optimizer.dense", Section, "").says(
        "The optimizer of MLPs and cross layers.",
        "dense = { kind = \"adam\", learning_rate = 0.001 }",
    ),
    required("optimizer.dense.kind", Choice(OPTIMIZERS), "")
        .says("The rule.", "dense = { kind = \"adam\", learning_rate = 0.001 }"),
    required("optimizer.dense.learning_rate", Number, "0 or more")
        .says("Base learning rate.", "dense = { kind = \"adam\", learning_rate = 0.001 }"),
    optional("optimizer.dense.epsilon", Number, "above 0, or 0 with sgd").or("1e-8").says(
        "Constant added to the root in the denominator of a step. sgd does not use it.",
        "epsilon = 1e-6",
    ),
    optional("optimizer.dense.beta1", Number, "0 to below 1").or("0.9").says(
        "Share of the mean gradient that adam, sparse_adam and lamb keep per step.",
        "beta1 = 0.9",
    ),
    optional("optimizer.dense.beta2", Number, "0 to below 1").or("0.999").says(
        "Share of the mean squared gradient that adam, sparse_adam and lamb keep per step.",
        "beta2 = 0.99",
    ),
    optional("optimizer.dense.weight_decay", Number, "0 or more")
        .or("0")
        .says("Weight decay.", "weight_decay = 1e-5"),
    optional("optimizer.dense.weight_decay_mode", Choice(&["none", "l2", "decoupled"]), "")
        .or("none")
        .says(
            "Whether the decay is added to the gradient (l2) or applied separately (decoupled).",
            "weight_decay_mode = \"decoupled\"",
        ),
    optional("schedule", Section, "")
        .or("constant rates")
        .says("How both learning rates change from step to step.", "[schedule]"),
    optional("schedule.warmup_steps", Integer, "0 or more")
        .or("0")
        .says("Steps of linear warm-up.", "warmup_steps = 1000"),
    optional("schedule.decay_start_step", Integer, "0 or more")
        .or("0")
        .says("First step of the decay.", "decay_start_step = 5000"),
    optional("schedule.decay_steps", Integer, "0 or more")
        .or("0")
        .says("Steps of the decay; 0 keeps the rate constant.", "decay_steps = 20000"),
    optional("schedule.decay_power", Number, "0 or more")
        .or("0")
        .says("Exponent of the decay: 1 is linear.", "decay_power = 1.0"),
    optional("schedule.decay_floor", Number, "0 to 1").or("0").says(
        "Lower limit of the decayed rate, as a share of the base rate.",
        "decay_floor = 0.01",
    ),
    required("training", Section, "")
        .says("The length of training, its evaluations and its checkpoints.", "[training]"),
    required("training.batch_size", Integer, "at least 1")
        .says("Samples per step, over all ranks.", "batch_size = 4096"),
    optional("training.precision", Choice(&["f32", "bf16"]), "").or("f32").says(
        "Number format of the factors of matrix products; bf16 rounds weights, activations and \
         gradients.",
        "precision = \"bf16\"",
    ),
    optional("training.epochs", Integer, "0 or more")
        .or("1")
        .says("Passes over the training data.", "epochs = 3"),
    optional("training.steps", Integer, "0 or more")
        .or("all of the epochs")
        .says("Number of steps after which training stops, even within an epoch.", "steps = 10000"),
    optional("training.seed", Integer, "0 or more")
        .or("0")
        .says("Seed of the shuffle.", "seed = 1"),
    optional("training.shuffle_rows", Integer, "0 or more").or("65536").says(
        "Number of samples from which the shuffle draws; 0 keeps the order of the files.",
        "shuffle_rows = 1000000",
    ),
    optional("training.drop_last", Boolean, "")
        .or("false")
        .says("Leave out the last, smaller batch of an epoch.", "drop_last = true"),
    optional("training.log_every", Integer, "at least 1")
        .or("100")
        .says("Steps between log lines.", "log_every = 20"),
    optional("training.evaluate_every", Integer, "at least 1").or("at the end alone").says(
        "Steps between evaluations on the held-out data; there is always one at the end.",
        "evaluate_every = 1000",
    ),
    optional("training.evaluate_samples", Integer, "at least 1")
        .or("all")
        .says("Number of held-out samples per evaluation.", "evaluate_samples = 100000"),
    optional("training.checkpoint_every", Integer, "at least 1").or("at the end alone").says(
        "Steps between checkpoints; there is always one at the end.",
        "checkpoint_every = 1000",
    ),
    optional("training.keep_checkpoints", Integer, "at least 1")
        .or("3")
        .says("How many of the newest checkpoints are kept.", "keep_checkpoints = 5"),
    optional("training.keep_best", Choice(&["auc", "normalized_entropy", "loss"]), "")
        .or("the newest alone")
        .says(
            "Held-out figure whose best checkpoint is kept in addition. eval and score use that \
             checkpoint.",
            "keep_best = \"auc\"",
        ),
    optional("training.patience", Integer, "at least 1").or("never").says(
        "Number of evaluations in a row without a better figure after which training stops. Needs \
         keep_best and evaluate_every.",
        "patience = 3",
    ),
    optional("training.baselines", Boolean, "").or("false").says(
        "Whether to fit a logistic regression on the same columns at the end, and to show its \
         figures and those of the base rate beside the model's.",
        "baselines = true",
    ),
    optional("training.auc_by", Text, "").says(
        "A categorical column of the model, such as the user. AUC is also reported as the mean \
         over its groups.",
        "auc_by = \"user\"",
    ),
    required("data", Section, "").says("The files and their columns.", "[data]"),
    optional("data.train", Texts, "").or("--train").says(
        "Training files, plain or compressed, folders of files, or one prepared folder. Paths are \
         relative to the folder in which the command runs. Folders in a path can name columns, as \
         in device=phone/0.csv.",
        "train = [\"day_0.csv.gz\"]",
    ),
    optional("data.evaluation", Texts, "")
        .or("the held-out share of the training data")
        .says("Held-out files.", "evaluation = [\"day_1.csv.gz\"]"),
    optional("data.validation", Number, "0 to below 1").or("0").says(
        "Share of the training data that is held out for validation, just before the rows of \
         `hold_out`. keep_best and patience then follow these rows, and the other held-out rows \
         are used once, to test the best checkpoint. With 0, they follow the held-out rows.",
        "validation = 0.1",
    ),
    optional("data.hold_out", Number, "0 to below 1").or("0.1").says(
        "Share of the training data that is held out if `evaluation` names no file: the last \
         rows, or the rows that `hold_out_by` selects.",
        "hold_out = 0.2",
    ),
    optional("data.hold_out_by", Text, "").or("the order of the files").says(
        "The column, usually a time, whose greatest values are held out for the test and, just \
         before them, for validation.",
        "hold_out_by = \"timestamp\"",
    ),
    required("data.format", Choice(FORMATS), "").says(
        "Layout of the files. csv: quoted text, see delimiter. tsv: tab-separated without quotes. \
         criteo: label, 13 integers and 26 hexadecimal categories without a header. npy: the \
         arrays of TorchRec and MLPerf.",
        "format = \"csv\"",
    ),
    optional("data.delimiter", Text, "1 to 4 ASCII characters")
        .or("\",\"")
        .says("Separator of the fields in csv files; \"tab\" for a tab.", "delimiter = \";\""),
    optional("data.quote", Text, "one ASCII character, or \"\" for none")
        .or("'\"'")
        .says("Quote character around fields in csv files.", "quote = \"'\""),
    optional("data.preset", Choice(&["criteo-dlrm", "criteo-torchrec"]), "").says(
        "A published preparation of Criteo's files that fixes label, dense and categorical \
         columns.",
        "preset = \"criteo-dlrm\"",
    ),
    optional("data.columns", Texts, "").or("the header line").says(
        "Column names, in order, for files without a header.",
        "columns = [\"y\", \"a\", \"b\"]",
    ),
    optional("data.label", Section, "")
        .or("the preset's")
        .says("The label. Required without a preset.", "label = { column = \"click\" }"),
    required("data.label.column", Text, "")
        .says("The column of the label.", "label = { column = \"click\" }"),
    optional("data.label.positive", Texts, "").or("the column is a number from 0 to 1").says(
        "Values that mean 1; all others mean 0.",
        "label = { column = \"rating\", positive = [\"4\", \"5\"] }",
    ),
    optional("data.label.positive_from", Integer, "").says(
        "Lowest integer that means 1, for a column of counts; lower counts mean 0.",
        "label = { column = \"clicks\", positive_from = 1 }",
    ),
    optional("data.label.unlabeled", Choice(&["malformed", "leave_out"]), "").or("malformed").says(
        "Treatment of rows without a label. malformed: they count as malformed rows, which \
         --malformed-max limits. leave_out: they are skipped, however many there are.",
        "label = { column = \"click\", unlabeled = \"leave_out\" }",
    ),
    optional("data.dense", Sections, "").or("none, or the preset's").says(
        "Dense columns, in the order of the model's dense input.",
        "dense = [{ column = \"age\" }]",
    ),
    required("data.dense[].column", Text, "").says(
        "Name of the column. `d{0..3}` stands for four such columns.",
        "{ column = \"age\" }",
    ),
    optional(
        "data.dense[].transform",
        Choice(&["none", "log1p", "log3", "standardise", "datetime", "one"]),
        "",
    )
    .or("none")
    .says(
        "none: the number. log1p: ln(max(x, 0) + 1). log3: ln(max(x, -2) + 3). standardise: \
         (x - mean) / deviation of the training rows. datetime: `parts` of a time. one: 1 in every \
         row, which gives a model without numbers a learned vector and thereby a bias per id.",
        "{ column = \"age\", transform = \"standardise\" }",
    ),
    optional("data.dense[].number", Choice(&["plain", "money", "decimal_comma"]), "")
        .or("plain")
        .says(
            "How numbers are written. money: $1,234.50, (4.21), 12 %. decimal_comma: 1.234,50 €.",
            "{ column = \"price\", number = \"money\", transform = \"log1p\" }",
        ),
    optional("data.dense[].parts", Choices(PARTS), "").or("[\"hour\", \"weekday\", \"age\"]").says(
        "Parts of a time that transform = \"datetime\" uses, each as a separate input. hour_sin, \
         hour_cos: sine and cosine of the time of day, so that midnight is no break. age: the time \
         before the newest training row.",
        "{ column = \"time\", transform = \"datetime\", parts = [\"hour\", \"age\"] }",
    ),
    optional(
        "data.dense[].date_format",
        Text,
        "letters of strftime: %Y %y %m %d %H %M %S %f %I %p %b %a %z",
    )
    .or("ISO 8601, or seconds to nanoseconds since 1970")
    .says(
        "How the times of transform = \"datetime\" and of hold_out_by are written.",
        "{ column = \"day\", transform = \"datetime\", date_format = \"%d.%m.%Y\" }",
    ),
    optional("data.categorical", Sections, "").or("none, or the preset's").says(
        "Categorical columns; each feature of the model names one.",
        "categorical = [{ column = \"user\" }]",
    ),
    required("data.categorical[].column", Text, "").says(
        "Name of the column. `t{0..3}` stands for four such columns.",
        "{ column = \"user\" }",
    ),
    optional("data.categorical[].kind", Choice(&["integer", "hex", "string"]), "")
        .or("string")
        .says("How one category is written.", "{ column = \"user\", kind = \"integer\" }"),
    optional("data.categorical[].separator", Text, "").or("one category per row").says(
        "Separator of the categories of a list. List columns of Parquet files do not need it.",
        "{ column = \"genres\", separator = \"|\" }",
    ),
    optional("data.categorical[].out_of_range", Choice(&["modulo", "error", "missing"]), "")
        .or("modulo")
        .says(
            "Treatment of an id outside its table, with ids.mode = \"modulo\".",
            "{ column = \"user\", kind = \"integer\", out_of_range = \"error\" }",
        ),
    optional("data.categorical[].missing", Integer, "").says(
        "The id that represents a missing category; not allowed for text.",
        "{ column = \"user\", kind = \"integer\", missing = -1 }",
    ),
    optional("data.categorical[].min_count", Integer, "0 or more").or("that of data.ids").says(
        "Minimum number of occurrences for which a category gets its own row, with ids.mode = \
         \"exact\".",
        "{ column = \"user\", min_count = 5 }",
    ),
    optional("data.missing", Text, "")
        .or("the empty field alone")
        .says("Text that stands for a missing value, besides the empty field.", "missing = \"?\""),
    optional("data.ids", Section, "").or("{ mode = \"modulo\" }").says(
        "How categories become rows of a table.",
        "ids = { mode = \"exact\", min_count = 2 }",
    ),
    required("data.ids.mode", Choice(&["modulo", "exact"]), "").says(
        "modulo: the integer, or a hash of the text, modulo the table's rows. exact: a row for \
         each category seen often enough in the training data; row 0 for missing ones, row 1 for \
         rare and unseen ones.",
        "ids = { mode = \"exact\" }",
    ),
    optional("data.ids.min_count", Integer, "0 or more").or("0").with("exact", false).says(
        "Minimum number of occurrences for which a category gets its own row.",
        "ids = { mode = \"exact\", min_count = 2 }",
    ),
    optional("data.ids.memory_mib", Integer, "at least 1").or("1024").with("exact", false).says(
        "Memory that counting may use, in MiB. Beyond it, counts are written to temporary files.",
        "ids = { mode = \"exact\", memory_mib = 4096 }",
    ),
    optional("synthetic", Section, "")
        .says("How often each id occurs in the rows of --synthetic.", "[synthetic]"),
    optional("synthetic.ids", Section, "")
        .or("{ kind = \"zipf\", exponent = 1.05 }")
        .says("The distribution of ids in all tables.", "ids = { kind = \"uniform\" }"),
    required("synthetic.ids.kind", Choice(LAWS), "").says(
        "uniform: all ids are equally frequent. zipf: ids follow Zipf's law. reuse: ids follow a \
         measured histogram.",
        "ids = { kind = \"uniform\" }",
    ),
    required("synthetic.ids.exponent", Number, "0 or more")
        .with("zipf", true)
        .says("Skew of the distribution.", "ids = { kind = \"zipf\", exponent = 1.05 }"),
    required("synthetic.ids.file", Text, "").with("reuse", true).says(
        "Locality statistics as dlrm_datasets publishes them.",
        "ids = { kind = \"reuse\", file = \"stats.txt.gz\" }",
    ),
    optional("synthetic.ids.section", Text, "").or("the first").with("reuse", false).says(
        "Name of a section of the file.",
        "ids = { kind = \"reuse\", file = \"stats.txt.gz\", section = \"day 2\" }",
    ),
    optional("synthetic.tables", SectionPerName, "").says(
        "Distributions of single tables, by table name; the keys are those of synthetic.ids.",
        "tables = { user = { kind = \"uniform\" } }",
    ),
    required("synthetic.tables.*.kind", Choice(LAWS), "")
        .says("As in synthetic.ids.", "tables = { user = { kind = \"uniform\" } }"),
    required("synthetic.tables.*.exponent", Number, "0 or more")
        .with("zipf", true)
        .says("As in synthetic.ids.", "tables = { user = { kind = \"zipf\", exponent = 1.2 } }"),
    required("synthetic.tables.*.file", Text, "").with("reuse", true).says(
        "As in synthetic.ids.",
        "tables = { user = { kind = \"reuse\", file = \"stats.txt.gz\" } }",
    ),
    optional("synthetic.tables.*.section", Text, "")
        .with("reuse", false)
        .says("As in synthetic.ids.", "section = \"day 2\""),
    optional("synthetic.bag_sizes", IntegerPerName, "").says(
        "Ids per sample of single features, by feature name. Predictions of steps without data \
         assume them, too.",
        "bag_sizes = { history = 20 }",
    ),
    optional("plan", Section, "")
        .says("Constraints on plans of rowmill plan and of --sharding auto.", "[plan]"),
    optional("plan.layouts", Choices(LAYOUTS), "")
        .or("all")
        .says("Layouts that tables may have.", "layouts = [\"table\", \"row\"]"),
    optional("plan.most_ranks", Integer, "at least 1").or("all").says(
        "Largest number of ranks that hold parts of one table. It does not apply to replicated \
         tables.",
        "most_ranks = 8",
    ),
    optional("plan.reserve_bytes", Integer, "0 or more")
        .or("0")
        .says("Memory of each rank that plans leave free.", "reserve_bytes = 4_000_000_000"),
    optional("plan.least_columns", Integer, "at least 1").or("16").says(
        "Least number of columns of a part, if the columns of a table are split.",
        "least_columns = 16",
    ),
    optional("plan.stats", Text, "").or("the bag sizes and distributions of [synthetic]").says(
        "File of the features' statistics, as rowmill data stats --feature-stats writes it.",
        "stats = \"features.json\"",
    ),
    optional("plan.tables", SectionPerName, "").says(
        "Constraints on single tables, by table name.",
        "tables = { user = { layouts = [\"row\"] } }",
    ),
    optional("plan.tables.*.layouts", Choices(LAYOUTS), "")
        .or("plan.layouts")
        .says("As in plan.", "layouts = [\"row\"]"),
    optional("plan.tables.*.most_ranks", Integer, "at least 1")
        .or("plan.most_ranks")
        .says("As in plan.", "most_ranks = 2"),
    optional("plan.tables.*.pinned", Section, "").says(
        "A layout and ranks that the table keeps.",
        "pinned = { layout = \"table\", ranks = [0] }",
    ),
    required("plan.tables.*.pinned.layout", Choice(LAYOUTS), "")
        .says("The layout of the table.", "layout = \"column\""),
    optional("plan.tables.*.pinned.ranks", Integers, "0 or more").or("none").says(
        "One rank for each part: column part by column part, and within it in the order of rows. \
         A replicated table lists none.",
        "ranks = [0, 1]",
    ),
    optional("plan.tables.*.pinned.parts", Integer, "at least 1").with("column", true).says(
        "Number of column parts of the layout column.",
        "pinned = { layout = \"column\", parts = 2, ranks = [0, 1] }",
    ),
    optional("plan.tables.*.pinned.columns", Integer, "at least 1").with("grid", true).says(
        "Number of column parts of the layout grid.",
        "pinned = { layout = \"grid\", columns = 2, ranks = [0, 1, 2, 3] }",
    ),
    optional("storage", Section, "").says(
        "Tables that are larger than memory: their rows are in files, and a cache of rows is in \
         memory. The weights are those of training in memory. Only on CPUs.",
        "[storage]",
    ),
    optional("storage.tables", Texts, "")
        .or("all tables")
        .says("Names of the tables. Their data_type is f32.", "tables = [\"user\"]"),
    required("storage.folder", Text, "").says(
        "Folder of the files, on a fast disk. It must exist. The files have no names, so they \
         vanish with the program. Checkpoints are complete without them.",
        "folder = \"/mnt/nvme\"",
    ),
    required("storage.cache_mib", Integer, "at least 1").says(
        "Memory of the caches on each rank, in MiB, with optimizer state. All rows of a batch must \
         fit, and rows are read ahead if those of two batches do. rowmill data cache shows what \
         caches miss.",
        "cache_mib = 4096",
    ),
    optional("storage.policy", Choice(&["lru", "lfu"]), "").or("lru").says(
        "The row that a full cache evicts: the one used least recently, or the one that the fewest \
         recent batches used.",
        "policy = \"lfu\"",
    ),
];
