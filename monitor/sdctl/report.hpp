// What a bug report needs, in one file that can be shown to strangers.
#pragma once
#include <string>
#include <vector>

namespace sd::ctl {

struct ReportPart {
    std::string name, text;
};

/// Names and addresses are blotted out already.
std::vector<ReportPart> report_parts();
/// A tar.gz of mode 0600 that was not there before. Throws Failure, and leaves nothing behind then.
void write_report(const std::string &path, const std::vector<ReportPart> &parts);
/// "socksdirect-report-20260102-030405.tar.gz" here.
std::string report_name();

} // namespace sd::ctl
