//! One measured step, as a line of `rows.tsv`.

/// What a step cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub files: u64,
    pub step: String,
    /// The time limit ended it.
    pub cut: bool,
    pub seconds: f64,
    /// Seconds of processor time of the daemon.
    pub daemon: f64,
    /// The same of the command.
    pub command: f64,
    /// Bytes, during the step: of the daemon, or of the command if there is no daemon.
    pub peak: u64,
    /// Bytes, after it: resident, proportional, anonymous.
    pub resident: u64,
    pub proportional: u64,
    pub anonymous: u64,
    pub descriptors: u64,
    /// Bytes on disk.
    pub index: u64,
    pub packs: u64,
}

impl Row {
    /// Processor time of all.
    pub fn processor(&self) -> f64 {
        self.daemon + self.command
    }

    pub fn line(&self) -> String {
        let Row { files, step, cut, seconds, daemon, command, peak, resident, .. } = self;
        let Row { proportional, anonymous, descriptors, index, packs, .. } = self;
        format!(
            "{files}\t{step}\t{cut}\t{seconds:.3}\t{daemon:.2}\t{command:.2}\t{peak}\t{resident}\t{proportional}\t{anonymous}\t\
             {descriptors}\t{index}\t{packs}"
        )
    }

    pub fn parse(line: &str) -> Option<Row> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [files, step, cut, seconds, daemon, command, rest @ ..] = &fields[..] else { return None };
        let numbers: Vec<u64> = rest.iter().map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let [peak, resident, proportional, anonymous, descriptors, index, packs] = numbers[..] else {
            return None;
        };
        Some(Row {
            files: files.parse().ok()?,
            step: (*step).to_owned(),
            cut: cut.parse().ok()?,
            seconds: seconds.parse().ok()?,
            daemon: daemon.parse().ok()?,
            command: command.parse().ok()?,
            peak,
            resident,
            proportional,
            anonymous,
            descriptors,
            index,
            packs,
        })
    }
}
